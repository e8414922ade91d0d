// The service worker: the page's own files from the cache, so that it opens offline. Weights are
// kept by store.js. A new export has another VERSION. It waits while pages of the old one are open,
// so that no page mixes files of two, and is asked by page.js to replace them.

const PAGE = `weft-page ${/** @type {any} */ (self).registration.scope}`;
const VERSION = `${PAGE} %VERSION%`;
const FILES = "%FILES%".split(" ");

/**
 * @param {Response | undefined} found @param {string} begins its SHA-256, if it is right
 * @returns {Promise<boolean>}
 */
async function holds(found, begins) {
  const bytes = await found?.clone().arrayBuffer().catch(() => null);
  if (!found?.ok || !bytes) return false;
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return Array.from(digest, (b) => b.toString(16).padStart(2, "0")).join("").startsWith(begins);
}

/**
 * The page has just fetched these files: what store.js keeps of them, or else the browser, is
 * taken, if it is what this version holds.
 * @param {string} name @param {string} begins the SHA-256 of the file
 * @returns {Promise<Response>}
 */
async function taken(name, begins) {
  const own = await caches.open("weft-files-1"); // store.js, which adds the SHA-256 to a name
  const keys = await own.keys(new Request(name), { ignoreSearch: true });
  const key = keys.find(({ url }) => new URL(url).search.startsWith(`?${begins}`));
  const stored = key && await own.match(key);
  if (await holds(stored, begins)) return /** @type {Response} */ (stored);
  const found = await fetch(new Request(name, { cache: "force-cache" })).catch(() => undefined);
  if (await holds(found, begins)) return /** @type {Response} */ (found);
  return fetch(new Request(name, { cache: "reload" }));
}

/** @param {string} entry of FILES */
async function kept(entry) {
  const [name, begins] = entry.split("=");
  const response = await taken(name, begins);
  if (!response.ok) throw new TypeError(`${name}: ${response.status}`);
  await (await caches.open(VERSION)).put(name, response);
}

self.addEventListener("install", (/** @type {any} */ event) => {
  event.waitUntil(Promise.all(FILES.map(kept)));
});

/** Takes over if no other page is open, or if the user asks; tells the page if it does. */
self.addEventListener("message", (/** @type {any} */ event) => {
  const { clients, registration, skipWaiting } = /** @type {any} */ (self);
  const { data: pressed, source } = event;
  const all = { type: "window", includeUncontrolled: true };
  event.waitUntil(clients.matchAll(all).then((/** @type {any[]} */ windows) => {
    const goes = pressed || !windows.some(({ id, url }) =>
      id !== source.id && url.startsWith(registration.scope));
    source.postMessage(goes);
    if (goes) skipWaiting.call(self);
  }));
});

self.addEventListener("activate", (/** @type {any} */ event) => {
  event.waitUntil(caches.keys()
    .then((names) => Promise.all(names.filter((name) =>
      name.startsWith(PAGE) && name !== VERSION)
      .map((name) => caches.delete(name)))));
});

self.addEventListener("fetch", (/** @type {any} */ event) => {
  if (event.request.method !== "GET") return;
  event.respondWith(caches.open(VERSION)
    .then((cache) => cache.match(event.request, { ignoreSearch: true }))
    .catch(() => undefined) // storage that was there once may be denied later
    .then((found) => found ?? fetch(event.request)));
});
