// The service worker: the page's own files from the cache, so that it opens offline. Weights are
// kept by store.js. A new export has another VERSION. It waits while pages of the old one are open,
// so that no page mixes files of two, and is asked by page.js to replace them.

const PAGE = `weft-page ${/** @type {any} */ (self).registration.scope}`;
const VERSION = `${PAGE} %VERSION%`;
const FILES = "%FILES%".split(" ");

/**
 * @param {Response | undefined} found @param {string} begins its SHA-256, if it is right
 * @returns {Promise<Response | undefined>} it again, whole, if it is right
 */
async function right(found, begins) {
  const bytes = await found?.arrayBuffer().catch(() => null);
  if (!found?.ok || !bytes) return undefined;
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  const hex = Array.from(digest, (b) => b.toString(16).padStart(2, "0")).join("");
  return hex.startsWith(begins) ? new Response(bytes, found) : undefined;
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
  const of = (/** @type {RequestCache} */ cache) => fetch(new Request(name, { cache }));
  return await right(stored, begins)
    ?? await right(await of("force-cache").catch(() => undefined), begins) ?? of("reload");
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

/** How many more pages only come again: by then a newer worker answers them. */
let leaving = 0;

/** Takes over if no other page is open, or if the user asks; tells the page if it does. */
self.addEventListener("message", (/** @type {any} */ event) => {
  const { clients, registration, skipWaiting } = /** @type {any} */ (self);
  const { data: pressed, source } = event;
  if (pressed === "leaving") {
    leaving = 5;
    source.postMessage(true);
    return;
  }
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

/**
 * The newer worker takes over as the page goes. Chromium then never ends the body that this one
 * gives to the next page, which is therefore asked to come again.
 * @param {Request} request
 * @returns {Promise<Response>}
 */
async function answer(request) {
  if (request.mode === "navigate" && leaving-- > 0) {
    return new Response(null, { headers: { "Content-Type": "text/html", Refresh: "0" } });
  }
  try {
    const found = await (await caches.open(VERSION)).match(request, { ignoreSearch: true });
    if (found) return found;
  } catch {
    // storage that was there once may be denied later
  }
  return fetch(request);
}

self.addEventListener("fetch", (/** @type {any} */ event) => {
  if (event.request.method === "GET") event.respondWith(answer(event.request));
});
