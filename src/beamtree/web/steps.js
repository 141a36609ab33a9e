"use strict";
// The merges one by one: buttons, a slider, keys, and a clock that plays them.

const SECONDS_IN_ALL = 20; // a long text plays faster, so that no one waits for minutes
const SLOWEST = 900; // milliseconds a merge
const FASTEST = 40;

/** The controls below the page. `show` is told the number of merges made, and gives the words for what is seen. */
function stepper(show) {
  let step = 0;
  let most = 0;
  let clock = null;

  function stop() {
    clearInterval(clock);
    clock = null;
    byId("play").textContent = "Play";
  }

  function go(wanted) {
    step = within(wanted, 0, most);
    byId("slider").value = step;
    const said = show(step);
    byId("step").textContent = said;
    byId("slider").setAttribute("aria-valuetext", said);
    byId("back").disabled = byId("first").disabled = step === 0;
    byId("forward").disabled = byId("last").disabled = step === most;
    if (step === most) stop();
  }

  function play() {
    if (clock !== null) return stop();
    if (step === most) go(0);
    byId("play").textContent = "Pause";
    clock = setInterval(() => go(step + 1), within((1000 * SECONDS_IN_ALL) / most, FASTEST, SLOWEST));
  }

  const by = (wanted) => () => {
    stop();
    // A button that has just been disabled would lose the focus to nowhere.
    const focused = document.activeElement;
    go(wanted());
    if (focused?.disabled) byId("play").focus();
  };
  byId("first").addEventListener("click", by(() => 0));
  byId("back").addEventListener("click", by(() => step - 1));
  byId("forward").addEventListener("click", by(() => step + 1));
  byId("last").addEventListener("click", by(() => most));
  byId("slider").addEventListener("input", by(() => Number(byId("slider").value)));
  byId("play").addEventListener("click", play);
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, textarea, select, summary");
    if (typing || !most || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "ArrowLeft") by(() => step - 1)();
    else if (event.key === "ArrowRight") by(() => step + 1)();
    else if (event.key === " " && !event.target.closest?.("button, a")) play();
    else return;
    event.preventDefault();
  });

  return {
    /** For other documents: how many merges there are now, and how many are made at first. */
    begin(steps, wanted) {
      stop();
      most = steps;
      byId("slider").max = steps;
      byId("player").hidden = false;
      byId("play").disabled = byId("slider").disabled = steps === 0;
      go(wanted ?? steps);
    },
    stop,
    get step() { return step; },
    get most() { return most; },
  };
}
