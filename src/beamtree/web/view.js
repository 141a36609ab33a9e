// The main module: the form, the views of the answer, and the state in the URL fragment. With a server, documents come
// from /api/parse; in an exported file, all documents are embedded in the page, and the form chooses one of them.

import { readAddress, writeAddress } from "./address.js";
import { Refused, explain, fetchDocument, fetchModels } from "./api.js";
import { Browser } from "./browse.js";
import { byId, element, within, words } from "./dom.js";
import { Reading } from "./documents.js";
import { History } from "./history.js";
import { Stage } from "./stage.js";

const PATIENCE = 500; // milliseconds until the progress of a request is shown
const embedded = byId("documents") && JSON.parse(byId("documents").textContent);

let models = [];
let asking = null; // AbortController of the current request; a newer request aborts it
let past = null;
let browser = null;
const stage = new Stage({ changed: writeView, showError, isOffline: Boolean(embedded) });

const modelOf = (name) => models.find((model) => model.name === name);
const examplesOf = (model) => model?.examples ?? (model ? [model.example] : []);
const sources = () => [byId("model").value, byId("compare").value].filter((source) => source !== "");
const fields = () => ({ text: byId("text")?.value ?? "", second: isPair() ? byId("second").value : "" });
const isPair = () => [byId("model").value, byId("compare").value].some((name) => modelOf(name)?.pair);

/** Store the state of the page in the URL fragment. */
function writeView() {
  const parts = { [embedded ? "document" : "model"]: byId("model").value, compare: byId("compare").value };
  writeAddress({ ...parts, ...(embedded ? {} : fields()), ...stage.address });
}

function showError(message) {
  stage.clear();
  byId("result").textContent = "";
  byId("problem").textContent = message;
  byId("problem").hidden = false;
}

function notify(message) {
  byId("notice").textContent = message;
  byId("notice").hidden = !message;
}

function show(documents, view) {
  byId("problem").hidden = true;
  stage.show(
    documents.map((content) => new Reading(content)),
    view,
  );
}

/** Send the request in the form. `view`: the view of the answer; `onRefusal` handles an error with status 422. */
async function ask(view = {}, onRefusal = null) {
  if (embedded)
    return show(
      sources().map((source) => embedded[Number(source)]),
      view,
    );
  asking?.abort();
  const control = (asking = new AbortController());
  const notice = setTimeout(() => {
    byId("working").hidden = false;
  }, PATIENCE);
  byId("progress").textContent = "Parsing …";
  byId("stage").setAttribute("aria-busy", "true");
  try {
    const asked = fields();
    const documents = await Promise.all(sources().map((name) => fetchOne(name, asked, control.signal)));
    show(documents, view);
    past.add({ model: byId("model").value, ...asked, label: documents[0].label });
  } catch (error) {
    if (control.signal.aborted) return;
    if (onRefusal && error instanceof Refused && error.status === 422) return onRefusal(error);
    showError(explain(error));
    writeView();
  } finally {
    clearTimeout(notice);
    if (control === asking) {
      byId("working").hidden = true;
      byId("stage").removeAttribute("aria-busy");
    }
  }
}

async function fetchOne(model, { text, second }, signal) {
  const asked = { model, text, ...(second && modelOf(model).pair && { second }) };
  const several = sources().length > 1 ? `${model}: ` : "";
  try {
    return await fetchDocument(asked, signal, (event) => {
      byId("progress").textContent =
        several +
        (event.event === "queued"
          ? `queued at position ${event.position}`
          : `running for ${Math.round(event.seconds)} s`);
    });
  } catch (error) {
    if (error instanceof Refused) throw new Refused(several + error.message, error.status);
    throw error;
  }
}

function setText([text, second = ""]) {
  byId("text").value = text;
  byId("second").value = second;
}

/** Send the request as a new entry of the browser's history, so that the back button shows the previous answer. */
function askNew(...how) {
  history.pushState(null, "", location.href);
  notify("");
  return ask(...how);
}

function choose(field, value) {
  if ([...field.options].some((option) => option.value === value)) field.value = value;
  else field.selectedIndex = 0;
}

/** Show the second field if the chosen model takes pairs, and the examples of the model. */
function showFields() {
  if (embedded) return;
  byId("second-field").hidden = !isPair();
  document.body.classList.toggle("pair", isPair());
  const model = modelOf(byId("model").value);
  byId("examples").replaceChildren(
    ...examplesOf(model).map((texts) => {
      const name = texts.map((text) => words(text.split(/\s+/), 0, text.split(/\s+/).length, 16)).join(" | ");
      const chip = element("button", { type: "button", class: "chip", dir: "auto", title: texts.join("\n") }, name);
      chip.addEventListener("click", () => {
        setText(texts);
        askNew();
      });
      return element("li", {}, chip);
    }),
  );
}

/** Called when another model was chosen. An example of another model, or a text that the model rejects, is replaced. */
function changeModel() {
  showFields();
  notify("");
  if (embedded) return ask();
  const model = modelOf(byId("model").value);
  const [example] = examplesOf(model);
  const isForeign = (texts) => texts[0] === byId("text").value;
  const foreign =
    models
      .filter((each) => each !== model)
      .flatMap(examplesOf)
      .some(isForeign) && !examplesOf(model).some(isForeign);
  if (foreign || !byId("text").value.trim() || (model.pair && !byId("second").value)) setText(example);
  browser.read();
  return ask({}, (error) => {
    setText(example);
    notify(`${byId("model").value} cannot parse the previous text (${error.message}): showing its example instead.`);
    return ask();
  });
}

/** Show the state in the URL fragment; without a text, show the example of the model. */
function followAddress() {
  const wanted = readAddress();
  const source = embedded ? wanted.document : wanted.model;
  choose(byId("model"), source ?? byId("model").options[0].value);
  choose(byId("compare"), wanted.compare ?? "");
  showFields();
  if (!embedded)
    setText(wanted.text === null ? examplesOf(modelOf(byId("model").value))[0] : [wanted.text, wanted.second ?? ""]);
  const missing = [
    [source, byId("model")],
    [wanted.compare, byId("compare")],
  ].find(([name, field]) => name !== null && field.value !== name);
  if (missing)
    return showError(`The link needs the ${embedded ? "document" : "model"} “${missing[0]}”, which is not available.`);
  return ask(wanted);
}

async function start() {
  const option = (value, text) => element("option", { value }, text);
  if (embedded) {
    for (const id of ["text-field", "second-field", "parse", "chips"]) byId(id).remove();
    byId("ask").hidden = embedded.length === 1;
    const texts = embedded.map(({ model, text }, index) => [
      String(index),
      `${words(text.split(/\s+/), 0, text.split(/\s+/).length, 10)} · ${model}`,
    ]);
    byId("model-field").firstChild.textContent = "Text and model";
    for (const id of ["model", "compare"]) byId(id).append(...texts.map((each) => option(...each)));
  } else {
    past = new History(({ model, text, second }) => {
      choose(byId("model"), model);
      showFields();
      setText([text, second]);
      askNew();
    });
    browser = new Browser({
      showError,
      model: () => modelOf(byId("model").value),
      choose: ({ text, second }) => {
        setText([text, second]);
        askNew();
      },
    });
    models = await fetchModels();
    for (const id of ["model", "compare"]) byId(id).append(...models.map(({ name }) => option(name, name)));
    byId("compare-field").hidden = models.length === 1;
    for (const id of ["text", "second"]) growOnFocus(byId(id));
  }
  await followAddress();
}

/** Let a field of one line grow to show the whole text while it has the focus. */
function growOnFocus(field) {
  const fit = () => {
    field.style.height = "";
    if (document.activeElement === field) field.style.height = `${within(field.scrollHeight + 2, 36, 240)}px`;
  };
  for (const event of ["focus", "input", "blur"]) field.addEventListener(event, fit);
}

byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  askNew();
});
byId("ask").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && event.target.matches("textarea") && !event.isComposing) {
    event.preventDefault();
    byId("ask").requestSubmit();
  }
});
byId("model").addEventListener("change", changeModel);
byId("compare").addEventListener("change", () => {
  showFields();
  const second = examplesOf(modelOf(byId("compare").value))[0]?.[1];
  if (!embedded && isPair() && !byId("second").value && second) byId("second").value = second;
  ask();
});
byId("cancel").addEventListener("click", () => {
  asking?.abort();
  byId("working").hidden = true;
  byId("stage").removeAttribute("aria-busy");
});
for (const menu of document.querySelectorAll("details.menu")) {
  document.addEventListener("click", ({ target }) => {
    if (!menu.contains(target)) menu.open = false;
  });
  menu.addEventListener("keydown", ({ key }) => {
    if (key !== "Escape") return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });
}
window.addEventListener("popstate", followAddress); // the back button, or a changed URL fragment
start().catch((error) => showError(explain(error)));
