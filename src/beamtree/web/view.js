"use strict";
// The page as a whole: what was asked, the address that tells it, and one panel or two to compare.
// On a server the documents come from /api/parse; in a file they are all in the page, and one chooses among them.

const embedded = byId("documents") && JSON.parse(byId("documents").textContent);
const SOURCE = embedded ? "document" : "model"; // what the address calls it
let models = [];
let panels = [];
let asking = null; // the request under way: a newer one ends it
let lit = null;
const steps = stepper(showMerges);

function showMerges(step) {
  const said = panels.map(({ sides }) => sides.map((side) => side.show(step)).join("; "));
  writeAddress();
  // Two models that make the same merge need not say so twice.
  return `${step} of ${steps?.most ?? 0} merges: ${[...new Set(said)].join(" / ")}`;
}

function showChosen() {
  const [one, two] = panels;
  const shared = [];
  one.sides.forEach((side, index) => {
    const other = two?.sides[index];
    const comparable = other && sameTokens(side, other);
    side.setApart(comparable ? other : null);
    other?.setApart(comparable ? side : null);
    if (comparable) {
      const both = [...side.chosen.keys()].filter((key) => other.chosen.has(key)).length;
      shared.push(`${both} of ${plural(side.chosen.size, "constituent")}`);
    }
  });
  byId("result").textContent = panels.map((panel) => panel.summary).join(" ")
    + (shared.length ? ` The chosen trees share ${shared.join(" and ")}.` : "");
}

const sameTokens = (a, b) => a.side.tokens.length === b.side.tokens.length
  && a.side.tokens.every((token, index) => token === b.side.tokens[index]);

function show(documents, { beams = [], step = null } = {}) {
  steps.stop();
  lit = null;
  panels = documents.map((content) => new Panel(content, () => {
    showChosen();
    steps.begin(steps.most, steps.step);
  }));
  panels.forEach(({ sides }, index) => sides.forEach((side, place) => {
    side.choose(within(Number(beams[index]?.[place]) || 0, 0, side.side.beams.length - 1));
  }));
  byId("panels").replaceChildren(...panels.map((panel) => panel.root));
  byId("panels").classList.toggle("two", panels.length > 1);
  byId("tools").hidden = false;
  byId("problem").hidden = true;
  showChosen();
  steps.begin(Math.max(...panels.map((panel) => panel.steps)), step);
}

function complain(message) {
  steps.stop();
  panels = [];
  byId("panels").replaceChildren();
  byId("player").hidden = byId("tools").hidden = true;
  byId("result").textContent = "";
  byId("problem").textContent = message;
  byId("problem").hidden = false;
}

const chosenSources = () => [byId("model").value, byId("compare").value].filter((source) => source !== "");

async function ask(view = {}) {
  if (embedded) return show(chosenSources().map((source) => embedded[Number(source)]), view);
  asking?.abort();
  const control = asking = new AbortController();
  byId("result").textContent = "Reading …";
  byId("panels").setAttribute("aria-busy", "true");
  try {
    show(await Promise.all(chosenSources().map((name) => fetchDocument(name, control.signal))), view);
  } catch (error) {
    if (control.signal.aborted) return;
    complain(error instanceof TypeError ? "The server does not answer: is it still running?" : error.message);
    writeAddress();
  }
  if (control === asking) byId("panels").removeAttribute("aria-busy");
}

async function fetchDocument(model, signal) {
  const second = models.find(({ name }) => name === model)?.pair ? byId("second").value : "";
  const body = JSON.stringify({ model, text: byId("text").value, ...(second && { second }) });
  const headers = { "Content-Type": "application/json" };
  const answer = await fetch("api/parse", { method: "POST", headers, body, signal });
  const content = await answer.json();
  if (!answer.ok) throw new Error(byId("compare").value ? `${model}: ${content.error}` : content.error);
  return content;
}

/** Everything that is seen is in the address. */
function writeAddress() {
  const parts = new URLSearchParams();
  parts.set(SOURCE, byId("model").value);
  if (byId("compare").value) parts.set("compare", byId("compare").value);
  if (!embedded) {
    parts.set("text", byId("text").value);
    if (byId("second").value) parts.set("second", byId("second").value);
  }
  const beams = panels.map(({ sides }) => sides.map((side) => side.beam).join("."));
  if (beams.some((each) => /[1-9]/.test(each))) parts.set("beams", beams.join("_"));
  if (panels.length && steps?.step < steps?.most) parts.set("step", steps.step);
  if (byId("fit").checked) parts.set("fit", "1");
  history.replaceState(null, "", `#${parts}`);
}

function readAddress() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const first = byId("model").options[0].value;
  choose(byId("model"), parts.get(SOURCE) ?? first);
  choose(byId("compare"), parts.get("compare") ?? "");
  const missing = [[parts.get(SOURCE), byId("model")], [parts.get("compare"), byId("compare")]]
    .find(([wanted, field]) => wanted !== null && field.value !== wanted);
  byId("fit").checked = parts.get("fit") === "1";
  fitDrawings();
  showFields();
  if (!embedded) {
    byId("text").value = parts.get("text") ?? example()[0];
    byId("second").value = parts.get("second") ?? (parts.has("text") ? "" : example()[1] ?? "");
  }
  if (missing) return complain(`The link asks for the ${SOURCE} “${missing[0]}”, which is not here.`);
  const beams = (parts.get("beams") ?? "").split("_").map((each) => each.split("."));
  const step = /^\d+$/.test(parts.get("step") ?? "") ? Number(parts.get("step")) : null;
  if (embedded || parts.has("text")) ask({ beams, step });
}

function choose(field, value) {
  if ([...field.options].some((option) => option.value === value)) field.value = value;
  else field.selectedIndex = 0;
}

const modelOf = (field) => models.find(({ name }) => name === byId(field).value);
const example = () => modelOf("model")?.example ?? [""];

/** A second text is asked for when a model reads pairs. */
function showFields() {
  if (embedded) return;
  byId("second-field").hidden = ![modelOf("model"), modelOf("compare")].some((model) => model?.pair);
}

function fitDrawings() {
  byId("panels").classList.toggle("fit", byId("fit").checked);
}

function light(group) {
  if (lit) for (const { side, span } of lit) side.light(...span, false);
  lit = null;
  if (!group) return;
  const own = panels.flatMap(({ sides }) => sides).find((side) => side.root.contains(group));
  const place = panels.map(({ sides }) => sides.indexOf(own)).find((index) => index >= 0);
  const span = group.dataset.span.split("-").map(Number);
  const alike = panels.map(({ content, sides }) => ({ content, side: sides[place], span }))
    .filter(({ side }) => side && sameTokens(side, own));
  lit = alike;
  for (const { side } of alike) side.light(...span, true);
  byId("detail").textContent = alike.map(({ content, side }) => (panels.length > 1 ? `${content.model}: ` : "")
    + side.describe(...span)).join("\n");
}

function option(value, text) {
  return element("option", { value }, text);
}

async function start() {
  if (embedded) {
    for (const id of ["text-field", "second-field", "send-field"]) byId(id).remove();
    byId("ask").hidden = embedded.length === 1;
    const beginning = (text) => words(text.split(/\s+/), 0, Infinity, 10);
    const texts = embedded.map(({ model, text }, index) => [String(index), `${beginning(text)} · ${model}`]);
    byId("model-field").firstChild.textContent = "Text and model ";
    for (const id of ["model", "compare"]) byId(id).append(...texts.map((each) => option(...each)));
  } else {
    const answer = await fetch("api/models");
    ({ models } = await answer.json());
    for (const id of ["model", "compare"]) byId(id).append(...models.map(({ name }) => option(name, name)));
    byId("compare-field").hidden = models.length === 1;
  }
  readAddress();
}

byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  history.pushState(null, "", location.href); // so that the browser's way back leads to what was seen before
  ask();
});
byId("ask").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && event.target.matches("textarea") && !event.isComposing) {
    event.preventDefault();
    byId("ask").requestSubmit();
  }
});
let tried = null; // the example that stands in the fields, which gives way to that of another model
for (const id of ["model", "compare"]) {
  byId(id).addEventListener("pointerdown", () => { tried = example(); });
  byId(id).addEventListener("focus", () => { tried = example(); });
  byId(id).addEventListener("change", () => {
    showFields();
    if (embedded) return ask();
    if (id === "model" && tried && byId("text").value === tried[0]) {
      [byId("text").value, byId("second").value] = [example()[0], example()[1] ?? ""];
    }
    tried = example();
    if (panels.length) ask();
  });
}
byId("fit").addEventListener("change", () => { fitDrawings(); writeAddress(); });
byId("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(location.href);
    byId("result").textContent = "The link is copied.";
  } catch { // a browser without a clipboard for pages
    byId("result").textContent = "The address of this page is the link: copy it from the address bar.";
  }
});
for (const [event, find] of [["pointerover", true], ["focusin", true], ["pointerleave", false]]) {
  byId("panels").addEventListener(event, ({ target }) => {
    const focused = document.activeElement?.closest(".constituent"); // which returns when the mouse goes
    light((find && target.closest(".constituent")) || focused);
  });
}
window.addEventListener("hashchange", readAddress);
start().catch(() => complain("The server does not answer: is it still running?"));
