"""Files and batches as they are kept and as clients read them (OpenAI's shapes)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

Status = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling",
    "cancelled",
]  # fmt: skip
ENDED: frozenset[Status] = frozenset({"failed", "completed", "expired", "cancelled"})
Endpoint = Literal[
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"
]  # fmt: skip
Text64 = Annotated[str, Meta(max_length=64)]
Text512 = Annotated[str, Meta(max_length=512)]


class StoredFile(Struct, kw_only=True):
    """A file. Times are in seconds since 1970. `expires_at` None: it stays until it is deleted.
    `owner` is a digest of the key that it belongs to; clients do not see it."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None = None
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"] = "processed"
    owner: str | UnsetType = UNSET


class BatchError(Struct, kw_only=True):
    """A fault of an input file. `line` counts from 1; None: it concerns the whole."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchErrors(Struct, kw_only=True):
    """The faults of an input file, at most `lines.MAX_ERRORS`."""

    object: Literal["list"] = "list"
    data: list[BatchError] = []


class Counts(Struct, kw_only=True):
    """The numbers of a batch's requests: all, answered and failed."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class Batch(Struct, kw_only=True):
    """A batch. `output_seconds`: how long its output files stay (None: until they are deleted).
    Clients see neither that nor `owner`."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: Endpoint
    errors: BatchErrors | None = None
    input_file_id: str
    completion_window: str
    status: Status = "validating"
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: Counts = field(default_factory=Counts)
    metadata: dict[str, str] | None = None
    owner: str | UnsetType = UNSET
    output_seconds: int | UnsetType | None = UNSET


class OutputExpiry(Struct, forbid_unknown_fields=True, kw_only=True):
    """The lifetime of output files after their creation: an hour to 30 days."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=3600, le=2592000)]


class CreateBatch(Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/batches. `completion_window` is a duration such as 24h, after which the batch
    expires."""

    input_file_id: Text512
    endpoint: Endpoint
    completion_window: Text64
    metadata: Annotated[dict[Text64, Text512], Meta(max_length=16)] | None = None
    output_expires_after: OutputExpiry | None = None


class UploadForm(Struct, kw_only=True, rename={"anchor": "expires_after[anchor]",
                                               "seconds": "expires_after[seconds]"}):  # fmt: skip
    """POST /v1/files: a form with a `file` of JSON lines. It stays for `seconds` (an hour to 30
    days) after its creation, or until it is deleted."""

    file: Annotated[str, Meta(extra_json_schema={"format": "binary"})]
    purpose: Literal["batch"]
    anchor: Literal["created_at"] | None = None
    seconds: Annotated[int, Meta(ge=3600, le=2592000)] | None = None


class RequestLine(Struct, forbid_unknown_fields=True, kw_only=True):
    """A line of an input file."""

    custom_id: Annotated[str, Meta(min_length=1, max_length=512)]
    method: Literal["POST"]
    url: str
    body: Raw


class RequestHead(Struct):
    """The fields of a request's body that are read before its turn comes."""

    stream: Any = None


class FileDeleted(Struct, kw_only=True):
    """The answer to DELETE /v1/files/{id}."""

    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


class FileList(Struct, kw_only=True):
    """The answer to GET /v1/files."""

    object: Literal["list"] = "list"
    data: list[StoredFile]
    first_id: str | None
    last_id: str | None
    has_more: bool


class BatchList(Struct, kw_only=True):
    """The answer to GET /v1/batches."""

    object: Literal["list"] = "list"
    data: list[Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool
