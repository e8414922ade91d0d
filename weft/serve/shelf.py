"""The models of a server by name, loaded when somebody asks, within a limit of memory."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from weft.core.errors import DeviceError, OutOfMemoryError, RankError, UsageError, WeftError
from weft.host.collector import set_apart, take_back
from weft.models.run.base import Model
from weft.models.run.drafting import check_pair
from weft.models.run.embedder import Encoder
from weft.models.run.entry import load
from weft.models.run.judge import Judge
from weft.models.run.model import Decoder
from weft.models.run.picture_encoder import PictureEncoder
from weft.models.run.transcriber import Transcriber
from weft.serve.guard import key_of
from weft.serve.keys import present
from weft.serve.load_queue import LoadQueue
from weft.serve.metrics import ServerMetrics
from weft.serve.recipes import Recipe, RecipeFolder
from weft.serve.served import Served, ServedDecoder, ServedEncoder
from weft.serve.served_judge import ServedJudge
from weft.serve.served_pictures import ServedPictures
from weft.serve.served_speech import ServedTranscriber
from weft.serve.sessions import open_sessions
from weft.serve.settings import ServeSettings, bytes_of
from weft.serve.wire import HttpError

_log = logging.getLogger(__name__)
_LOOKS = 0.05  # seconds between looks at whether a model's answers have ended


class ModelShelf:
    """`paths`: where each model is, by the name that requests use; here with the adapters, whose
    models are their `parents`. `limit`: bytes that weights and caches may take together (None: no
    limit). To load another, those not used for the longest time go, when their answers have ended;
    until then they take no new requests. `load` loads one, as weft.load does."""

    def __init__(
        self, paths: Mapping[str, str], settings: ServeSettings, metrics: ServerMetrics,
        limit: int | None = None, load: Callable[..., Model] = load,
    ) -> None:  # fmt: skip
        if not paths:
            raise UsageError("name at least one model to serve")
        self.settings, self.metrics, self.limit = settings, metrics, limit
        self.models = dict(paths)  # as they were given
        self.wrong: Mapping[str, str] = {}  # names of a folder that are left out, and why
        self.paths = {**paths, **settings.adapters}
        self.parents = dict.fromkeys(settings.adapters, next(iter(paths)))
        self.recipes: dict[str, Recipe] = {}  # models that requests have made, by name
        folder = settings.model_folder
        self.folder = None if folder is None else RecipeFolder(Path(folder))
        self.sessions = open_sessions(settings.sessions)
        if twice := paths.keys() & settings.adapters.keys():
            raise UsageError(f"a model and an adapter are called {min(twice)!r}; rename one")
        self.created, self._make = int(time.time()), load
        self._loaded: dict[str, Served] = {}
        self._queue = LoadQueue(
            self._load, max(settings.queue, settings.sequences), settings.load_seconds
        )
        self._draining: set[str] = set()  # models that take no new requests
        self._retired: dict[Served, asyncio.Task[None]] = {}  # no longer served, with answers left
        self._freed = asyncio.Event()  # set when a model may have become idle
        self.adapting = asyncio.Lock()  # one adapter comes or goes at a time
        metrics.watch(self)
        for recipe in () if self.folder is None else self.folder.read().values():
            self._take(recipe)

    def add(self, recipe: Recipe) -> None:
        """Serves a model that a request has made, in the place of one made before."""
        self.recipes[recipe.name] = recipe
        self.paths[recipe.name] = self.paths[recipe.base]

    def forget(self, name: str) -> None:
        """Serves a model no longer that a request had made. Answers that run get their end."""
        del self.recipes[name], self.paths[name]

    def _take(self, recipe: Recipe) -> None:
        """Adds a recipe whose base is served, and whose name is free."""
        if recipe.base in self.paths and recipe.name not in self.paths:
            self.add(recipe)
        else:
            why = "a model has its name" if recipe.name in self.paths else "its base is not served"
            _log.warning("the model %s, made of %s, is left out: %s", recipe.name, recipe.base, why)

    def own(self, name: str) -> tuple[str, str]:
        """The model or adapter of this name, and the model that is loaded for it."""
        base = self.recipes[name].base if name in self.recipes else name
        return base, self.parents.get(base, base)

    def seen(self, name: str) -> Served | None:
        """The model as requests for a name see it, if it is loaded."""
        base, own = self.own(name)
        model = self._loaded.get(own)
        if model is None:
            return None
        return (
            self.recipes[name].of(model.under(base)) if name in self.recipes else model.under(base)
        )

    @property
    def first(self) -> str:
        """The name of the first model."""
        return next(iter(self.paths))

    def decoders(self) -> list[ServedDecoder]:
        """Those that are loaded now."""
        return [m for m in list(self._loaded.values()) if isinstance(m, ServedDecoder)]

    def loaded(self) -> list[Served]:
        """Returns the models that are loaded now."""
        return list(self._loaded.values())

    def change(
        self, paths: Mapping[str, str], limit: int | None, keep_alive: float | None, seconds: float
    ) -> None:
        """Serves these models from now on, with this limit of memory, time without use, and time
        to wait. A loaded model that is not among them, or has another path now, takes no new
        requests, and goes when its answers have ended."""
        self.limit = limit
        self.settings = replace(self.settings, keep_alive=keep_alive, load_seconds=seconds)
        self._queue.seconds = seconds
        if paths == self.models:  # adapters stay as requests have loaded them
            return
        before, self.models, self.paths = self.paths, dict(paths), dict(paths)
        recipes, self.recipes = self.recipes, {}
        for recipe in recipes.values():
            self._take(recipe)
        for name, model in list(self._loaded.items()):
            if self.paths.get(name) != before.get(name):
                del self._loaded[name]
                self._retire(model)

    def _retire(self, model: Served) -> None:
        async def end() -> None:
            while not model.idle:
                await asyncio.sleep(_LOOKS)
            await self._closed(model)
            del self._retired[model]
            if model.name not in self.paths:
                self.metrics.forget(model=model.name)
            self._freed.set()

        model.expiry.stop()
        self._retired[model] = asyncio.ensure_future(end())

    @contextlib.asynccontextmanager
    async def use(self, name: str | None, keep: float | None = None) -> AsyncIterator[Served]:
        """The model of that name (None or "": the first), which stays loaded until the context
        ends, and `keep` seconds after its last use (None: as the settings say; negative: for good,
        as far as memory allows). Waits while it is loaded. Raises HttpError: 404 for a name that is
        not served, 503 if there is not enough memory for it."""
        name = name or self.first
        if name in self.wrong and name not in self.paths:
            raise HttpError(404, f"the model {name!r:.100} is left out: it cannot be loaded; the "
                            "server's log says why", "model")  # fmt: skip
        if name not in self.paths:
            known = ", ".join(self.paths)
            raise HttpError(404, f"unknown model {name!r:.100}; served: {known}", "model")
        recipe = self.recipes.get(name)
        base, own = self.own(name)
        model = self._loaded.get(own)
        if model is not None and model.watched.spoilt:
            del self._loaded[own]
            self._retire(model)
            model = None
        if model is None or own in self._draining:
            model = await self._taken(own)
        else:
            model.users += 1
        try:
            with model.using(base) as served:
                yield served if recipe is None else recipe.of(served)
        finally:
            model.users -= 1
            model.used = time.monotonic()
            self._freed.set()
            seconds = self.settings.keep_alive if keep is None else keep
            model.expiry.set(seconds, functools.partial(self._expire, model))

    async def _taken(self, name: str) -> Served:
        """A model that has to be loaded first. What is wrong with its files is the operator's to
        mend: the log says it. Raises HttpError."""
        try:
            return await self._queue.take(name, key_of(present.get()))
        except (OutOfMemoryError, DeviceError, RankError):
            raise
        except (WeftError, OSError) as e:
            said = f"the model {name!r:.100} cannot be loaded; the server's log says why"
            raise HttpError(500, said) from e

    async def _load(self, name: str) -> Served:
        """Loads a model for those who wait for it. Raises HttpError and WeftError."""
        try:
            while name in self.paths:
                path = self.paths[name]
                model = self._loaded.get(name) or await self._loaded_now(name, path)
                if self.paths.get(name) == path:
                    return model
                del self._loaded[name]  # the path has changed while it was read
                self._retire(model)
            raise HttpError(404, f"the model {name!r:.100} is served no longer", "model")
        finally:
            self._draining.clear()

    async def _loaded_now(self, name: str, path: str) -> Served:
        await self._make_room(0, name)
        options: dict[str, Any] = dict(self.settings.load or {})
        if name == self.first and self.settings.adapters:
            options["adapters"] = self.settings.adapters
        model = await asyncio.to_thread(self._make, path, **options)
        draft = await self._draft(model, options)
        await self._make_room(bytes_of(model, self.settings, draft), name)
        if isinstance(model, Decoder):
            made: Served = ServedDecoder(name, model, self.settings, self.metrics, draft)
        elif isinstance(model, Encoder):
            made = ServedEncoder(name, model)
        elif isinstance(model, Judge):
            made = ServedJudge(name, model)
        elif isinstance(model, PictureEncoder):
            made = ServedPictures(name, model, self.settings.pictures)
        elif isinstance(model, Transcriber):
            made = ServedTranscriber(name, model)
        else:
            raise UsageError(
                f"{path} is no model that weft serves: those write, embed, judge, hear"
            )
        try:
            await asyncio.to_thread(made.warm)
        except BaseException:
            await made.close()
            raise
        self._loaded[name] = made
        set_apart()
        _log.info("loaded %s: %d MiB", name, made.nbytes >> 20)
        return made

    async def _draft(self, model: Model, options: Mapping[str, Any]) -> Any:
        """The model that drafts for this one, in the dtype of its own checkpoint."""
        if self.settings.draft is None:
            return None
        where = {name: options[name] for name in ("device", "context") if name in options}
        draft = await asyncio.to_thread(load, self.settings.draft, **where)
        check_pair(model, draft)
        return draft

    async def _make_room(self, size: int, name: str) -> None:
        """Lets models go until `size` bytes more are within the limit: idle ones first, then those
        whose answers end. Raises HttpError."""
        while self.limit is not None and self._held() + size > self.limit:
            if size > self.limit:
                raise HttpError(503, f"{name} is larger than this server's memory limit")
            if not self._held():
                return
            if idle := [m for m in self._loaded.values() if m.idle]:
                await self._let_go(min(idle, key=lambda m: m.used))
                continue
            if not self._queue.waits(name):
                raise HttpError(503, f"no request waits for {name} any more")
            oldest = min(self._loaded.values(), key=lambda m: m.used, default=None)
            if oldest is not None and oldest.name not in self._draining:
                self._draining.add(oldest.name)
                _log.info("%s waits until the answers of %s have ended", name, oldest.name)
            self._freed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._freed.wait(), _LOOKS)

    async def _let_go(self, model: Served) -> None:
        del self._loaded[model.name]
        await self._closed(model)

    async def _closed(self, model: Served) -> None:
        await model.close()
        take_back()
        _log.info("let %s go", model.name)

    async def _expire(self, model: Served) -> None:
        """Lets a model go whose time is over, unless somebody uses it. A model whose adapters came
        by requests stays, since they would be lost."""
        if self.settings.adapter_folder is not None:
            return
        if self._loaded.get(model.name) is model and model.users == 0:
            while not model.idle:
                await asyncio.sleep(_LOOKS)
            if self._loaded.get(model.name) is model and model.users == 0:
                await self._let_go(model)

    def _held(self) -> int:
        return sum(m.nbytes for m in [*self._loaded.values(), *self._retired])

    async def close(self) -> None:
        """Ends all answers and frees the models."""
        await self._queue.close()
        for task in self._retired.values():
            task.cancel()
        for model in [*self.loaded(), *self._retired]:
            await model.close()
        self._loaded.clear()
        self._retired.clear()
        take_back()
