// The service worker: the page's own files from the cache, so that it opens offline. Weights are
// kept by store.js. A new export has another VERSION, which replaces the old files.

const PAGE = `weft-page ${/** @type {any} */ (self).registration.scope}`;
const VERSION = `${PAGE} %VERSION%`;
const FILES = "%FILES%".split(" ");

self.addEventListener("install", (/** @type {any} */ event) => {
  event.waitUntil(caches.open(VERSION)
    .then((cache) => cache.addAll(FILES.map((name) => new Request(name, { cache: "reload" }))))
    .then(() => /** @type {any} */ (self).skipWaiting()));
});

self.addEventListener("activate", (/** @type {any} */ event) => {
  event.waitUntil(caches.keys()
    .then((names) => Promise.all(names.filter((name) =>
      name.startsWith(PAGE) && name !== VERSION)
      .map((name) => caches.delete(name))))
    .then(() => /** @type {any} */ (self).clients.claim()));
});

self.addEventListener("fetch", (/** @type {any} */ event) => {
  if (event.request.method !== "GET") return;
  event.respondWith(caches.open(VERSION)
    .then((cache) => cache.match(event.request, { ignoreSearch: true }))
    .catch(() => undefined) // storage that was there once may be denied later
    .then((found) => found ?? fetch(event.request)));
});
