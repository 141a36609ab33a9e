// The documents of the server as objects: sides, their trees and nodes, and properties of spans.

import { isRightToLeft, plural, probability, spanKey, words } from "./dom.js";

const SIGNS = { "sentiment-1": "−−", "sentiment-2": "−", "sentiment-3": "0", "sentiment-4": "+", "sentiment-5": "++" };

/** A tree: the constituents of the document as nodes, leaves first, linked to their children and parents. */
class BeamTree {
  constructor(beam, size) {
    this.probability = beam.probability;
    this.brackets = beam.tree;
    this.size = size;
    this.bySpan = new Map();
    const tops = new Array(size); // by leaf: the node that starts there and has no parent yet
    this.nodes = beam.constituents.map((constituent, index) => {
      const { start, end } = constituent;
      const node = {
        ...constituent,
        key: spanKey(start, end),
        order: index - size,
        children: null,
        parent: null,
        height: 0,
      };
      if (index >= size) {
        const left = tops[start];
        const right = tops[left.end];
        node.children = [left, right];
        node.height = 1 + Math.max(left.height, right.height);
        left.parent = right.parent = node;
      }
      tops[start] = node;
      this.bySpan.set(node.key, node);
      return node;
    });
    this.root = this.nodes.at(-1);
    this.merges = this.nodes.slice(size);
  }
}

/** One text and its trees. */
export class Side {
  constructor(side, content, index) {
    this.content = content;
    this.name = content.sides.length > 1 ? ["First text", "Second text"][index] : null;
    this.text = side.text;
    this.tokens = side.tokens;
    this.offsets = side.offsets ?? null;
    this.chart = side.chart;
    this.rightToLeft = isRightToLeft(side.text);
    this.beams = side.beams.map((beam) => new BeamTree(beam, side.tokens.length));
    this.probabilities = new Map(side.chart.map(([start, end, value]) => [spanKey(start, end), value]));
    this.isJudged = this.beams.some(({ nodes }) => nodes.some(({ expected }) => expected != null));
    this.chosen = 0;
  }

  get size() {
    return this.tokens.length;
  }
  get tree() {
    return this.beams[this.chosen];
  }

  hasTokensOf(other) {
    return this.size === other.size && this.tokens.every((token, index) => token === other.tokens[index]);
  }

  /** The numbers, starting with 1, of the beams that contain a constituent. */
  holders(key) {
    return this.beams.flatMap(({ bySpan }, index) => (bySpan.has(key) ? [index + 1] : []));
  }

  probabilityOf(key) {
    const [start, end] = key.split("-").map(Number);
    return end - start === 1 ? 1 : (this.probabilities.get(key) ?? 0);
  }

  /** The original text of a span, or its tokens if there are no offsets. */
  textOf(start, end) {
    return this.offsets
      ? this.text.slice(...codeUnits(this.text, this.offsets[start][0], this.offsets[end - 1][1]))
      : this.tokens.slice(start, end).join(" ");
  }

  style(label) {
    const { labels = [], label_styles: styles = [] } = this.content;
    return styles[labels.indexOf(label)] ?? null;
  }

  /** The abbreviation of a label that is drawn on a node. */
  sign(label) {
    const style = this.style(label);
    if (style in SIGNS) return SIGNS[style];
    return label.length > 4 ? `${label.slice(0, 3)}…` : label;
  }

  /** The description of a node for screen readers. */
  describe(node) {
    const parts = [`“${words(this.tokens, node.start, node.end)}”`, `span [${node.start}, ${node.end})`];
    const wrong = isWrong(node) ? `≠ ${node.expected} (expected)` : ""; // the same sign as in the drawing
    if (node.label != null) parts.push(`label ${node.label}${wrong}`);
    if (node.children) {
      const held = this.holders(node.key);
      parts.push(
        `probability ${probability(this.probabilityOf(node.key))}`,
        `in ${held.length === 1 ? "beam" : "beams"} ${held.join(", ")} of ${this.beams.length}`,
      );
    }
    return parts.join(" · ");
  }
}

export const isWrong = (node) => node.expected != null && node.label !== node.expected;

/** Convert offsets in characters to offsets in UTF-16 code units, which JavaScript uses. */
function codeUnits(text, start, end) {
  if (text.length < 2 || !/[\ud800-\udbff]/.test(text)) return [start, end];
  const letters = Array.from(text);
  const before = letters.slice(0, start).join("").length;
  return [before, before + letters.slice(start, end).join("").length];
}

/** The answer of a model for a text or a pair. */
export class Reading {
  constructor(content) {
    this.content = content;
    this.sides = content.sides.map((side, index) => new Side(side, content, index));
  }

  get model() {
    return this.content.model;
  }
  get steps() {
    return Math.max(...this.sides.map(({ size }) => size - 1));
  }

  /** Whether the label differs from the expected one; null if there is no expected label. */
  get wrong() {
    const { root } = this.sides[0].beams[0];
    if (this.sides.length > 1 || root.expected == null || this.content.label === null) return null;
    return this.content.label !== root.expected;
  }

  /** The answer as text for screen readers. */
  get summary() {
    const { model, label, probabilities, sides } = this.content;
    const said =
      label === null ? "no label for one side of a pair alone" : `${label} (${probability(probabilities[label])})`;
    return `${model}: ${said}, ${sides.map((side) => plural(side.beams.length, "tree")).join(" and ")}.`;
  }
}
