// The URL fragment holds the complete state of the page, so that a link shows the same view again.

/** Parse the URL fragment. `beams`: index of the chosen beam of each side of each model, written as "0.1_2.0". */
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

/** Replace the URL fragment. Parts that are null, "" or have their default value are left out. */
export function writeAddress({ beams, view, ...parts }) {
  const written = new URLSearchParams();
  for (const [name, value] of Object.entries(parts)) if (value !== null && value !== "") written.set(name, value);
  if (view !== "tree") written.set("view", view);
  const chosen = beams.map((each) => each.join("."));
  if (chosen.some((each) => /[1-9]/.test(each))) written.set("beams", chosen.join("_"));
  history.replaceState(null, "", `#${written}`);
}
