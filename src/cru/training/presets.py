"""Presets: the experiments by name. Each is a TOML file with settings for every model."""

import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from cru.errors import InputError, did_you_mean
from cru.training.settings import DataSettings, RunSettings, TrainingSettings, build, differences, named_in

_SECTIONS = ("data", "model", "training")
PUBLISHED = "-published"  # suffix of presets with the published protocol


def presets() -> dict[str, str]:
    """Return the names of the presets with their descriptions."""
    return {name: str(read_preset(name)["about"]) for name in preset_names()}


def models_of(preset: str) -> list[str]:
    """Return the models of a preset, in the order of the tables of the paper."""
    return list(read_preset(preset)["models"])


def settings_for(preset: str, model: str, *, seed: int = 0, changes: Iterable[str] = ()) -> RunSettings:
    """Return the settings of a model in a preset.

    >>> from cru.training import settings_for
    >>> settings_for("pendulum-regression", "f-cru", changes=["training.epochs=5"]).training.learning_rate
    0.005

    Args:
        preset: name of a preset, or path of a TOML file.
        model: name of a model. Your own model, "module:Class", has the settings that all models of the preset share.
        seed: seed of the run.
        changes: changed settings, such as "training.epochs=5".

    Raises:
        ValueError: the preset, the model or a setting is unknown or not valid.
    """
    from cru.models.registry import entry, is_own

    table = read_preset(preset)
    entry(model)  # raises for an unknown name
    if model not in table["models"] and not is_own(model):
        known = ", ".join(table["models"])
        raise ValueError(f"{preset!r} has no settings for the model {model!r}; there are {known}.")
    own = table["models"].get(model, {})
    chosen: dict[str, Any] = {section: dict(table.get(section, {})) for section in _SECTIONS}
    for section in _SECTIONS:
        chosen[section] |= own.get(section, {})
    for change in changes:
        _apply(chosen, change)
    options = chosen.pop("model")
    _check_options(model, options)
    settings = {**chosen, "model": {"name": model, "options": options}, "seed": seed, "preset": table["name"]}
    built = build(RunSettings, settings)
    with named_in("model", options):
        _config(model)(**built.model.options)  # checks the values
    return built


def read_preset(preset: str) -> dict[str, Any]:
    """Read the tables of a preset, by its name or the path of a TOML file."""
    if preset.endswith(".toml"):
        return _parse(preset, Path(preset).stem, Path(preset).read_text(encoding="utf-8"))
    if preset not in preset_names():
        rule, hint = "be the name of a preset or the path of a TOML file", did_you_mean(preset, preset_names())
        raise InputError("preset", rule, repr(preset), hint)
    return _own_preset(preset)


@cache
def _own_preset(preset: str) -> dict[str, Any]:
    """Read a preset of this library. The tables are shared, so callers must not change them."""
    if preset.endswith(PUBLISHED):
        return _published(_own_preset(preset.removesuffix(PUBLISHED)))
    return _parse(preset, preset, (files("cru") / "presets" / f"{preset}.toml").read_text(encoding="utf-8"))


def _parse(preset: str, name: str, text: str) -> dict[str, Any]:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{preset} is not valid TOML: {error}.") from None
    _check_sections(preset, table)
    return {"name": name, "about": "", "published": False, "models": {}} | table


def published_presets() -> list[str]:
    """Return the names of the presets with the protocol of the published runs."""
    return [name + PUBLISHED for name in _file_names() if _own_preset(name)["published"]]


def _published(table: dict[str, Any]) -> dict[str, Any]:
    """Change a preset to the published protocol: train on all but the test set, and score the last epoch."""
    data, training = table["data"], table["training"]
    options = data.get("options", {}) | {"joined": True} | ({"same_days": True} if data["dataset"] == "ushcn" else {})
    batch = {"batch_size": 50} if data["dataset"] == "physionet" else {}
    return table | {
        "name": table["name"] + PUBLISHED,
        "about": f"{table['about']}, as published: trained on all but the test set, last epoch",
        "data": data | {"options": options},
        "training": training | {"keep": "last"} | batch,
        "models": {name: own for name, own in table["models"].items() if not name.startswith("paired")},
    }


def _check_sections(preset: str, table: Mapping[str, Any]) -> None:
    """Raise ValueError for unknown sections, and for values in place of sections."""
    _check_keys(preset, "", table, ("about", "published", "models", *_SECTIONS))
    for model, own in table.get("models", {}).items():
        _check_keys(preset, f"models.{model}.", own, _SECTIONS)


def _check_keys(preset: str, where: str, table: Any, known: tuple[str, ...]) -> None:
    if not isinstance(table, Mapping):
        raise ValueError(f"{preset}: `{where.rstrip('.')}` must be a section, got {table!r}.")
    for key, value in table.items():
        if key not in known:
            raise ValueError(f"{preset} must not have `{where}{key}`; {did_you_mean(key, known)}")
        if key not in ("about", "published") and not isinstance(value, Mapping):
            raise ValueError(f"{preset}: `{where}{key}` must be a section, got {value!r}.")


def parse_change(change: str) -> tuple[list[str], Any]:
    """Parse a change such as "training.epochs=5". The value is TOML or a plain word.

    >>> from cru.training.presets import parse_change
    >>> parse_change("training.schedule=cosine")
    (['training', 'schedule'], 'cosine')
    """
    key, equals, text = change.partition("=")
    keys = [part.strip() for part in key.split(".")]
    if not equals or not all(keys):
        raise ValueError(f"a setting must have the form training.epochs=5, got {change!r}.")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = None
    plain = isinstance(value, bool | int | float | str | list | dict)  # JSON has no dates
    return keys, value if plain else text.strip()


def _apply(chosen: dict[str, Any], change: str) -> None:
    keys, value = parse_change(change)
    if keys[0] not in _SECTIONS:
        kinds = {"data": DataSettings, "training": TrainingSettings}
        inside = [f"{name}.{keys[0]}" for name, kind in kinds.items() if keys[0] in kind.__annotations__]
        hint = f"did you mean {inside[0]!r}?" if inside else did_you_mean(keys[0], _SECTIONS)
        raise ValueError(f"there is no setting {'.'.join(keys)!r}; {hint}")
    if len(keys) == 1:
        raise ValueError(f"`{keys[0]}` is a section: write {keys[0]}.NAME=VALUE.")
    table = chosen
    for key in keys[:-1]:
        if not isinstance(table.get(key, {}), Mapping):
            raise ValueError(f"there is no setting `{'.'.join(keys)}`: `{key}` is a value, not a section.")
        table[key] = dict(table.get(key, {}))  # a copy: the tables of the preset are shared
        table = table[key]
    table[keys[-1]] = value


def _config(model: str) -> Any:
    from cru.models.registry import entry

    return entry(model).model.Config


def _check_options(model: str, options: Mapping[str, Any]) -> None:
    from dataclasses import fields

    known = [f.name for f in fields(_config(model))]
    for option in options:
        if option not in known:
            raise ValueError(f"there is no setting `model.{option}` for {model!r}; {did_you_mean(option, known)}")


@cache
def preset_names() -> tuple[str, ...]:
    """Return the names of all presets."""
    return tuple(sorted([*_file_names(), *published_presets()]))


def _file_names() -> list[str]:
    return sorted(path.name.removesuffix(".toml") for path in (files("cru") / "presets").iterdir())


_SHORTENING = ("training.epochs", "data.train", "data.validation", "data.test")


def changed_from_preset(settings: RunSettings) -> list[str]:
    """Return the settings that differ from those of the preset, or ["preset"] if there is no such preset."""
    if str(settings.preset) not in preset_names():  # a name from a file must not be read as a path
        return ["preset"]
    try:
        original = settings_for(str(settings.preset), settings.model.name, seed=settings.seed)
    except (ValueError, OSError):
        return ["preset"]
    return differences(settings, original)


def compare_with_preset(settings: RunSettings, *, own_series: bool) -> dict[str, Any]:
    """Return the settings that differ from those of the preset, and whether they make the run shorter."""
    changed = [*changed_from_preset(settings), *(["splits"] if own_series else [])]
    return {"changed": changed, "shortened": any(key in _SHORTENING for key in changed)}
