// Step through the merges with buttons, a slider and keys, or play them.

import { byId, within } from "./dom.js";

const SECONDS_IN_ALL = 20; // maximum duration: long texts are played faster
const SLOWEST = 900; // milliseconds per merge
const FASTEST = 40;

/** The player. `show` is called with the number of merges to show, and returns a description of the step. */
export class Player {
  constructor(show) {
    this.show = show;
    this.step = this.most = 0;
    this.clock = null;
    const by = (wanted) => () => this.#by(wanted());
    byId("first").addEventListener(
      "click",
      by(() => 0),
    );
    byId("back").addEventListener(
      "click",
      by(() => this.step - 1),
    );
    byId("forward").addEventListener(
      "click",
      by(() => this.step + 1),
    );
    byId("last").addEventListener(
      "click",
      by(() => this.most),
    );
    byId("slider").addEventListener(
      "input",
      by(() => Number(byId("slider").value)),
    );
    byId("play").addEventListener("click", () => this.play());
    document.addEventListener("keydown", (event) => this.#key(event));
  }

  #by(step) {
    this.stop();
    // A button that is disabled while it has the focus would lose it.
    const focused = document.activeElement;
    this.go(step);
    if (focused?.disabled) byId("play").focus();
  }

  #key(event) {
    const typing = event.target.closest?.("input, textarea, select, summary, [role=tab], [contenteditable]");
    if (typing || byId("player").hidden || !this.most || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "ArrowLeft") this.#by(this.step - 1);
    else if (event.key === "ArrowRight") this.#by(this.step + 1);
    else if (event.key === " " && !event.target.closest?.("button, a")) this.play();
    else return;
    event.preventDefault();
  }

  /** Start with other trees: `most` is their number of merges, `step` the number of merges to show first. */
  begin(most, step) {
    this.stop();
    this.most = most;
    byId("slider").max = most;
    byId("play").disabled = byId("slider").disabled = most === 0;
    this.go(step ?? most);
  }

  go(wanted) {
    this.step = within(wanted, 0, this.most);
    byId("slider").value = this.step;
    const said = this.show(this.step);
    byId("step").textContent = said;
    byId("slider").setAttribute("aria-valuetext", said);
    byId("back").disabled = byId("first").disabled = this.step === 0;
    byId("forward").disabled = byId("last").disabled = this.step === this.most;
    if (this.step === this.most) this.stop();
  }

  play() {
    if (this.clock !== null) return this.stop();
    if (this.step === this.most) this.go(0);
    byId("play").textContent = "Pause";
    this.clock = setInterval(
      () => this.go(this.step + 1),
      within((1000 * SECONDS_IN_ALL) / this.most, FASTEST, SLOWEST),
    );
  }

  stop() {
    clearInterval(this.clock);
    this.clock = null;
    byId("play").textContent = "Play";
  }
}
