// The main area: the tree, chart and steps of the answers, their beams, and the chosen constituent.

import { SkylineView } from "./skyline.js";
import { BeamStrip } from "./beams.js";
import { ChartView } from "./chart.js";
import { chartLegend, legendOf, sharedInWords } from "./compare.js";
import { answerOf, detailsOf, hintOf } from "./details.js";
import { button, byId, element, moveFocus, probability, within, words } from "./dom.js";
import { Downloads } from "./download.js";
import { Player } from "./steps.js";
import { TreeView } from "./tree.js";

const LONGEST_TRIANGLE = 60; // maximum number of tokens; the chart of a longer text is a skyline

export class Stage {
  /** `on`: {changed(), showError(message), isOffline}. */
  constructor(on) {
    this.on = on;
    this.readings = [];
    this.frames = [];
    this.view = "tree";
    this.chosen = null; // {key, side}: stays chosen when the pointer leaves it
    this.player = new Player((step) => this.#showStep(step));
    this.tabs = [...document.querySelectorAll("[role=tab]")];
    for (const tab of this.tabs) {
      tab.addEventListener("click", () => this.#open(tab.dataset.view));
      tab.addEventListener("keydown", (event) => this.#walkTabs(event));
    }
    byId("smaller").addEventListener("click", () => this.#each((view) => view.zoomBy?.(1 / 1.3)));
    byId("larger").addEventListener("click", () => this.#each((view) => view.zoomBy?.(1.3)));
    byId("fit").addEventListener("click", () => this.#each((view) => view.fit?.()));
    byId("open-all").addEventListener("click", () => {
      const isOpen = !this.#isCollapsed;
      for (const { tree } of this.frames) tree.setAll(isOpen);
      this.#showLegend();
    });
    this.downloads = new Downloads({
      isOffline: on.isOffline,
      pictureOf: (side) => this.frames.find(({ parts }) => parts.includes(side)).tree.picture(),
    });
  }

  /** The state of the view for the URL fragment. */
  get address() {
    const { step, most } = this.player;
    return {
      view: this.view,
      beams: this.readings.map(({ sides }) => sides.map((side) => side.chosen)),
      step: this.readings.length && this.view === "steps" && step < most ? step : null,
      node: this.chosen?.key ?? null,
    };
  }

  get #isCollapsed() {
    return this.frames.some(({ tree }) => tree.collapsed.size);
  }

  /** Show one answer, or two answers for comparison. */
  show(readings, { view = this.view, beams = [], step = null, node = null } = {}) {
    this.readings = readings;
    readings.forEach(({ sides }, index) =>
      sides.forEach((side, place) => {
        side.chosen = within(beams[index]?.[place] ?? 0, 0, side.beams.length - 1);
      }),
    );
    this.chosen = null;
    this.#makeFrames();
    document.body.classList.add("shown");
    byId("answer").replaceChildren(...answerOf(readings));
    byId("actions").hidden = false;
    this.downloads.show(readings);
    this.#open(view, step);
    const [{ parts }] = this.frames;
    if (node && parts.some((side) => side.tree.bySpan.has(node))) this.choose(node, parts[0]);
    else this.point(null);
    this.#announce();
  }

  clear() {
    this.player.stop();
    this.readings = [];
    this.frames = [];
    this.chosen = null;
    document.body.classList.remove("shown");
    byId("actions").hidden = byId("player").hidden = true;
    for (const id of ["frames", "beams", "answer", "details", "legend"]) byId(id).replaceChildren();
  }

  /** Create a frame for each text. Two models with the same tokens share a frame. */
  #makeFrames() {
    const count = Math.max(...this.readings.map(({ sides }) => sides.length));
    const on = {
      point: (key, side) => this.point(key, side),
      choose: (key, side) => this.choose(key, side),
      collapsed: () => this.#showLegend(),
    };
    const groups = Array.from({ length: count }, (_, place) =>
      this.readings.map(({ sides }) => sides[place]).filter(Boolean),
    ).flatMap((parts) => (parts.length > 1 && !parts[0].hasTokensOf(parts[1]) ? parts.map((side) => [side]) : [parts]));
    this.frames = groups.map((parts) => {
      const name = this.#nameOf(parts);
      const tree = new TreeView(parts, `Tree${name ? ` of ${name}` : ""}`, on);
      return { parts, name, tree, charts: null };
    });
    byId("beams").replaceChildren(
      ...this.readings.flatMap((reading) =>
        reading.sides.map((side) => {
          const name = [this.readings.length > 1 ? reading.model : null, side.name].filter(Boolean).join(", ");
          const strip = new BeamStrip(side, name, (beam) => {
            side.chosen = beam;
            this.#chosenChanged();
          });
          this.frames.find(({ parts }) => parts.includes(side)).strips ??= [];
          this.frames.find(({ parts }) => parts.includes(side)).strips.push(strip);
          return strip.root;
        }),
      ),
    );
  }

  #nameOf(parts) {
    const models = this.readings.length > 1 ? parts.map((side) => side.content.model).join(" and ") : null;
    return [models, parts[0].name].filter(Boolean).join(", ");
  }

  #chosenChanged() {
    for (const { tree, charts, strips } of this.frames) {
      tree.update();
      for (const each of [...(charts ?? []), ...strips]) each.update();
    }
    this.#showLegend();
    this.downloads.update();
    this.player.begin(this.player.most, this.player.step);
    this.point(null);
    this.#announce();
  }

  /** Update the status for screen readers. */
  #announce() {
    byId("result").textContent = this.readings.map(({ summary }) => summary).join(" ") + sharedInWords(this.frames);
  }

  /** Open one of the three views: tree, chart or steps. */
  #open(view, step = null) {
    this.view = view;
    for (const tab of this.tabs) {
      tab.setAttribute("aria-selected", tab.dataset.view === view);
      tab.setAttribute("tabindex", tab.dataset.view === view ? 0 : -1);
    }
    byId("frames").setAttribute("aria-labelledby", `tab-${view}`);
    byId("stage").dataset.view = view;
    if (!this.readings.length) return this.on.changed();
    byId("player").hidden = view !== "steps";
    byId("frames").replaceChildren(...this.frames.map((frame) => this.#frame(frame, view)));
    byId("frames").classList.toggle("two", this.frames.length > 1);
    this.player.begin(Math.max(...this.readings.map(({ steps }) => steps)), step);
    this.#showLegend();
    return this.on.changed();
  }

  #frame(frame, view) {
    const { parts, name, tree } = frame;
    if (view === "chart") {
      const on = { point: (key, side) => this.point(key, side), choose: (key, side) => this.choose(key, side) };
      frame.charts ??= parts.map(
        (side) =>
          new (side.size > LONGEST_TRIANGLE ? SkylineView : ChartView)(
            side,
            `Chart of ${[side.content.model, side.name].filter(Boolean).join(", ")}: every constituent and its probability`,
            on,
          ),
      );
    }
    const shown = view === "chart" ? frame.charts : [tree];
    const names =
      view === "chart" || parts.length > 1
        ? parts.map((side) =>
            [this.readings.length > 1 ? side.content.model : null, side.name].filter(Boolean).join(", "),
          )
        : [name];
    return element(
      "section",
      { class: `frame${shown.length > 1 ? " stacked" : ""}`, ...(name ? { "aria-label": name } : {}) },
      ...shown.flatMap((each, index) => [
        ...(names[index] ? [element("h2", { class: "frame-name" }, names[index])] : []),
        each.root,
      ]),
      ...(shown.length < names.length ? [element("h2", { class: "frame-name below" }, names[1])] : []),
    );
  }

  #walkTabs(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    const index = this.tabs.indexOf(event.target);
    const next = this.tabs[(index + by + this.tabs.length) % this.tabs.length];
    moveFocus(this.tabs, next);
    this.#open(next.dataset.view);
  }

  #each(act) {
    for (const { tree, charts } of this.frames) for (const view of this.view === "chart" ? charts : [tree]) act(view);
  }

  #showLegend() {
    const isCollapsed = this.#isCollapsed;
    byId("legend").replaceChildren(
      ...(this.view === "chart"
        ? chartLegend(this.frames[0].parts[0].size > LONGEST_TRIANGLE)
        : legendOf(this.frames, { isCollapsed })),
    );
    byId("open-all").hidden =
      this.view === "chart" || (!isCollapsed && this.frames.every(({ parts }) => parts[0].size < 20));
    byId("open-all").textContent = isCollapsed ? "Expand" : "Collapse";
    byId("open-all").setAttribute("aria-label", isCollapsed ? "Expand all" : "Collapse all");
    byId("zoom").classList.toggle(
      "useless",
      this.view === "chart" && this.frames.every(({ parts }) => parts[0].size <= LONGEST_TRIANGLE),
    );
  }

  #showStep(step) {
    const isStepping = this.view === "steps";
    for (const { tree } of this.frames) tree.showStep(isStepping ? step : null);
    if (isStepping) this.on.changed();
    const made = this.frames.flatMap(({ parts }) =>
      parts.map((side) => {
        const node = side.tree.merges[Math.min(step, side.size - 1) - 1];
        if (!node) return "no merge yet";
        const score = node.step_probability == null ? "" : `, probability ${probability(node.step_probability)}`;
        return `“${words(side.tokens, node.start, node.end, 6)}”${score}`;
      }),
    );
    return `${step} of ${this.player.most} merges: ${[...new Set(made)].join(" / ")}`;
  }

  /** Highlight the constituent under the pointer in all trees over the same tokens; `key` null: the chosen one. */
  point(key, side = null) {
    const { key: span, side: own } = key ? { key, side } : (this.chosen ?? { key: null, side: null });
    for (const { parts, tree, charts, strips } of this.frames) {
      const lit = parts.includes(own) ? span : null;
      for (const each of [tree, ...(charts ?? []), ...(strips ?? [])]) each.highlight(lit);
    }
    const frame = this.frames.find(({ parts }) => parts.includes(own));
    byId("details").replaceChildren(
      ...(frame
        ? detailsOf(span, frame.parts, {
            canToggle: this.view !== "chart" && frame.tree.canToggle(span),
            isCollapsed: frame.tree.collapsed.has(span),
            onToggle: () => this.#toggle(frame, span),
          })
        : hintOf(this.readings, (found, where) => this.choose(found, where, true))),
    );
  }

  #toggle(frame, key) {
    frame.tree.toggle(key);
    this.point(null);
    byId("toggle")?.focus();
  }

  /** Choose a constituent. `reveal`: also bring it into view, and expand the constituents that hide it. */
  choose(key, side, reveal = false) {
    this.chosen = { key, side };
    if (reveal) {
      const { parts, tree } = this.frames.find(({ parts: all }) => all.includes(side));
      tree.reveal(key, parts.indexOf(side));
    }
    this.#showLegend();
    this.point(null);
    this.on.changed();
  }
}
