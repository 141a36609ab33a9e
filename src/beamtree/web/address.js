// Everything that is seen is in the address, so that it can be copied, and shows the same again.

/** What the address asks for. Beams: the chosen one of each side of each model, as "0.1_2.0". */
export function readAddress() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const step = parts.get("step") ?? "";
  return {
    model: parts.get("model"),
    document: parts.get("document"),
    compare: parts.get("compare"),
    text: parts.get("text"),
    second: parts.get("second"),
    view: ["tree", "chart", "steps"].includes(parts.get("view")) ? parts.get("view") : "tree",
    beams: (parts.get("beams") ?? "").split("_").map((each) => each.split(".").map((beam) => Number(beam) || 0)),
    step: /^\d+$/.test(step) ? Number(step) : null,
    node: /^\d+-\d+$/.test(parts.get("node") ?? "") ? parts.get("node") : null,
  };
}

/** Replace the address; parts that are null, "" or as they are without being asked for are left out. */
export function writeAddress({ beams, view, ...parts }) {
  const written = new URLSearchParams();
  for (const [name, value] of Object.entries(parts)) if (value !== null && value !== "") written.set(name, value);
  if (view !== "tree") written.set("view", view);
  const chosen = beams.map((each) => each.join("."));
  if (chosen.some((each) => /[1-9]/.test(each))) written.set("beams", chosen.join("_"));
  history.replaceState(null, "", `#${written}`);
}
