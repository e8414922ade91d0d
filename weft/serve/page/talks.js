// Conversations, kept in this browser only.

/**
 * @typedef {{ role: string, content: string, reasoning?: string, note?: string }} Message
 * @typedef {{ id: string, title: string, messages: Message[], start?: number }} Talk
 * `start`: the first message that is still in the prompt
 */

const KEY = "weft.talks";
const MOST = 100;

/** @returns {Talk[]} */
export function kept() {
  try {
    const found = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return Array.isArray(found) ? found.filter((t) => t?.id && Array.isArray(t.messages)) : [];
  } catch {
    return [];
  }
}

/** Keeps the newest; where there is no room, fewer. @param {Talk[]} talks */
export function keep(talks) {
  for (let n = Math.min(talks.length, MOST); n >= 0; n = n > 1 ? n >> 1 : n - 1) {
    try {
      localStorage.setItem(KEY, JSON.stringify(talks.slice(0, n)));
      return;
    } catch {
      continue; // full or denied
    }
  }
}

/** @returns {Talk} */
export function fresh() {
  return { id: crypto.getRandomValues(new Uint32Array(2)).join("-"), title: "", messages: [] };
}

/** @param {Talk} talk */
export function titled(talk) {
  const first = talk.messages.find((m) => m.role === "user")?.content ?? "New conversation";
  return first.split("\n", 1)[0].slice(0, 60) || "New conversation";
}
