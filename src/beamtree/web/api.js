// Requests to the server.

/** The error that the server reports for a request. `status`: the HTTP status. */
export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export async function fetchModels() {
  const answer = await fetch("api/models");
  if (!answer.ok) throw new Refused(await errorOf(answer), answer.status);
  return (await answer.json()).models;
}

function post(path, body, accept, signal) {
  const headers = { "Content-Type": "application/json", Accept: accept };
  return fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}

async function errorOf(answer) {
  try {
    return (await answer.json()).error ?? `The server answered with ${answer.status}.`;
  } catch {
    // not JSON: an answer from a proxy between the page and the server
    return `The server answered with ${answer.status}.`;
  }
}

/**
 * Fetch the document of a text. `asked`: {model, text, second}. `onProgress` is called with the events of the server:
 * "queued" with the position in the queue, "running" with the seconds so far.
 */
export async function fetchDocument(asked, signal, onProgress = () => {}) {
  const answer = await post("api/parse", asked, "application/x-ndjson, application/json;q=0.9", signal);
  if (!answer.ok) throw new Refused(await errorOf(answer), answer.status);
  if (!answer.headers.get("Content-Type")?.startsWith("application/x-ndjson")) return answer.json();
  for await (const event of lines(answer.body)) {
    if (event.event === "done") return event.document;
    if (event.event === "error") throw new Refused(event.error, event.status);
    onProgress(event);
  }
  throw new TypeError("the answer ended early");
}

async function* lines(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let parts = []; // of an incomplete line, joined only once, since a document can be long
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const pieces = value.split("\n");
    for (const piece of pieces.slice(0, -1)) {
      const line = parts.join("") + piece;
      parts = [];
      if (line.trim()) yield JSON.parse(line);
    }
    parts.push(pieces.at(-1));
  }
  if (parts.join("").trim()) yield JSON.parse(parts.join(""));
}

/** Fetch a drawing as a file. `asked`: {model, text, second, format, beam, side, theme}. */
export async function fetchDrawing(asked) {
  const answer = await post("api/draw", asked, "*/*");
  if (!answer.ok) throw new Refused(await errorOf(answer), answer.status);
  return answer.blob();
}

/** The message for an error. */
export const explain = (error) =>
  error instanceof TypeError ? "The server does not answer: is it still running?" : error.message;
