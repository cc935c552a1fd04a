"""Models from the Hugging Face hub, through huggingface_hub and its own cache.

    [hf:]org/name[@revision]             a safetensors folder, or the repository's only GGUF file
    [hf:]org/name[@revision]/file.gguf   one file of it

HF_HOME, HF_HUB_OFFLINE and HF_TOKEN are that library's and mean what they mean there. It takes long
to import, so that happens on use.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.base.errors import ModelError, ModelNotFoundError
from octavo.weights.cache import CachedModel

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
REF = re.compile(
    rf"(?:hf:)?(?P<repo>{_NAME}/{_NAME})"
    r"(?:@(?P<revision>[A-Za-z0-9._-]+))?"
    r"(?:/(?P<file>(?:[A-Za-z0-9._-]+/)*[A-Za-z0-9._-]+\.gguf))?"
)
CONFIG_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
LISTING_TIMEOUT_S = 10
WEIGHT_FILES = ("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors")


@dataclass(frozen=True)
class HubRef:
    repo: str
    revision: str | None
    file: str | None

    @staticmethod
    def parse(ref: str) -> HubRef | None:
        """None when `ref` has not the form of a hub reference."""
        match = REF.fullmatch(ref)
        if match is None or ".." in ref:
            return None
        return HubRef(match["repo"], match["revision"], match["file"])


def fetch_hub(ref: HubRef, *, offline: bool) -> Path:
    """The snapshot folder (safetensors) or the GGUF file, downloaded unless it is in the cache.

    When the hub cannot be reached a cached copy is used. huggingface_hub draws its own progress.
    """
    from huggingface_hub import constants

    offline = offline or constants.HF_HUB_OFFLINE
    failure: Exception | None = None
    if not offline:
        try:
            return _fetch(ref, offline=False)
        except ModelError:
            raise
        except Exception as error:  # of httpx or requests, of the library, or OSError
            if _answered(error):
                raise _hub_failure(ref, error, offline=False) from error
            failure = error
    try:
        return _fetch(ref, offline=True)
    except Exception as error:
        raise _hub_failure(ref, failure or error, offline=offline) from error


def _fetch(ref: HubRef, *, offline: bool) -> Path:
    import huggingface_hub

    file = ref.file
    if file is None and not offline:
        # Not list_repo_files: that one retries for many seconds when there is no network.
        info = huggingface_hub.HfApi().model_info(
            ref.repo, revision=ref.revision, timeout=LISTING_TIMEOUT_S
        )
        file = choose_file(ref.repo, [sibling.rfilename for sibling in info.siblings or ()])
    if file is not None:
        return Path(
            huggingface_hub.hf_hub_download(
                ref.repo, file, revision=ref.revision, local_files_only=offline
            )
        )
    return Path(
        huggingface_hub.snapshot_download(
            ref.repo,
            revision=ref.revision,
            allow_patterns=[*CONFIG_FILES, *WEIGHT_FILES, *(["*.gguf"] if offline else [])],
            local_files_only=offline,
        )
    )


def _answered(error: Exception) -> bool:
    """Did the hub itself refuse, so that a cached copy would be the wrong answer?"""
    from huggingface_hub import errors

    refused = (
        errors.RepositoryNotFoundError,  # also of restricted ones
        errors.RevisionNotFoundError,
        errors.RemoteEntryNotFoundError,
    )
    return isinstance(error, refused)


def choose_file(repo: str, files: Sequence[str]) -> str | None:
    """Which GGUF file of a repository to take; None for its safetensors."""
    if "config.json" in files and any(f.endswith(".safetensors") and "/" not in f for f in files):
        return None
    gguf = sorted(file for file in files if file.endswith(".gguf"))
    if len(gguf) == 1:
        return gguf[0]
    if gguf:
        raise ModelError(
            f"hf:{repo} has several GGUF files",
            value=gguf,
            limit="one",
            remedy=f"name it: hf:{repo}/{gguf[0]}",
        )
    raise ModelNotFoundError(f"hf:{repo} has neither config.json with safetensors nor a GGUF file")


def cached_hub_models() -> list[CachedModel]:
    """Models in the hub's cache that octavo could open, as `org/name` or `org/name/file`."""
    import huggingface_hub
    from huggingface_hub.errors import CacheNotFound

    try:
        cache = huggingface_hub.scan_cache_dir()
    except CacheNotFound:
        return []
    found: list[CachedModel] = []
    for repo in cache.repos:
        if repo.repo_type != "model":
            continue
        for revision in repo.revisions:
            at = "" if "main" in revision.refs else f"@{revision.commit_hash}"
            files = {file.file_name: file for file in revision.files}
            if "config.json" in files and any(name.endswith(".safetensors") for name in files):
                path, nbytes = revision.snapshot_path, revision.size_on_disk
                found.append(CachedModel(f"{repo.repo_id}{at}", Path(path), nbytes))
            for file in revision.files:
                if file.file_name.endswith(".gguf"):
                    inside = Path(file.file_path).relative_to(revision.snapshot_path).as_posix()
                    name = f"{repo.repo_id}{at}/{inside}"
                    found.append(CachedModel(name, Path(file.file_path), file.size_on_disk))
    return sorted(found, key=lambda model: model.ref)


def _hub_failure(ref: HubRef, error: Exception, *, offline: bool) -> ModelError:
    from huggingface_hub import errors

    missing: tuple[Any, ...] = (
        errors.RepositoryNotFoundError,
        errors.RevisionNotFoundError,
        errors.EntryNotFoundError,
    )
    what = f"hf:{ref.repo}" + (f"@{ref.revision}" if ref.revision else "")
    if isinstance(error, errors.GatedRepoError):
        return ModelError(f"{what}: access is restricted", remedy="accept its terms, set HF_TOKEN")
    if isinstance(error, errors.LocalEntryNotFoundError):
        why = "offline" if offline else "the hub cannot be reached"
        return ModelNotFoundError(f"{what}: not in the hub's cache, and {why}")
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
    if isinstance(error, missing):
        return ModelNotFoundError(f"{what}: {first_line}")
    return ModelError(f"{what}: download failed: {first_line}", remedy="check the network")
