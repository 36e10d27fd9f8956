// The HTTP interface, with the token where the service asks for one.
import { $, say } from "./dom.js";

const KEY = "metatkgr-token";

export class Refused extends Error {
  constructor(status, error) {
    super([error.message, error.hint].filter(Boolean).join(" – "));
    this.status = status;
    this.code = error.code;
  }
}

export const get = (path, query = {}) => {
  const words = new URLSearchParams(query).toString();
  return ask(words ? `${path}?${words}` : path, {});
};

export const remove = (path) => ask(path, { method: "DELETE" });

/** A file of the service, kept by the browser under a name. */
export async function download(path, name) {
  const blob = await ask(path, {}, (response) => response.blob());
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export const post = (path, body) =>
  ask(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });

async function ask(path, options, read = (response) => response.json().catch(() => ({}))) {
  for (;;) {
    const headers = { ...options.headers };
    const token = sessionStorage.getItem(KEY);
    if (token) headers.Authorization = `Bearer ${token}`;
    let response;
    try {
      response = await fetch(path, { ...options, headers });
    } catch {
      throw new Refused(0, { code: "unreachable", message: "The service does not answer." });
    }
    if (response.status === 401) {
      await askForToken(Boolean(token));
      continue;
    }
    if (response.ok) return read(response);
    const content = await response.json().catch(() => ({}));
    throw new Refused(response.status, content.error ?? { message: `Error ${response.status}` });
  }
}

let asking = null;

function askForToken(wrong) {
  asking ??= new Promise((resolve) => {
    const dialog = $("token-dialog");
    say($("token-error"), wrong ? "This token is wrong, or no longer valid." : "");
    dialog.addEventListener("close", () => {
      sessionStorage.setItem(KEY, $("token").value.trim());
      $("token").value = "";
      asking = null;
      resolve();
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}
