"""A command's options, from the settings classes that it takes: flags, types, defaults and help are defined there."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import Field, fields, is_dataclass
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer

from h3serve.core.errors import RequestError
from h3serve.core.settings import one_of

Command = Callable[..., None]
Settings = TypeVar("Settings")


def with_options(*, only: Collection[str] = (), without: Collection[str] = ()) -> Callable[[Command], Command]:
    """Returns a decorator that makes a command's parameters of settings classes the options of their fields.

    `only` and `without` name fields; those that are not options keep their defaults.
    """

    def is_option(known: Field[Any]) -> bool:
        return "help" in known.metadata and known.name not in without and (not only or known.name in only)

    def decorate(command: Command) -> Command:
        parameters = inspect.signature(command, eval_str=True).parameters.values()
        settings: dict[str, Any] = {own.name: own.annotation for own in parameters if is_dataclass(own.annotation)}

        def run(**given: Any) -> None:
            command(**{name: _gather(kind, given, is_option) for name, kind in settings.items()}, **given)

        shown = [
            part
            for own in parameters
            for part in (_parameters(settings[own.name], is_option) if own.name in settings else [own])
        ]
        run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
        run.__annotations__ = {part.name: part.annotation for part in shown}
        run.__doc__ = command.__doc__
        return run

    return decorate


def checked(flag: str, value: str, choices: Any) -> Any:
    """Returns `value`, which must be one of a `Literal`'s; RequestError that names `flag` and them."""
    if value not in get_args(choices):
        raise RequestError(flag, value, one_of(choices))
    return value


def _parameters(settings: type[Any], is_option: Callable[[Field[Any]], bool]) -> list[inspect.Parameter]:
    """One parameter for each option of a settings class, and of those inside it."""
    found, hints = [], get_type_hints(settings)
    for known in fields(settings):
        if is_dataclass(kind := hints[known.name]):
            found += _parameters(kind, is_option)  # type: ignore[arg-type]
        elif is_option(known):
            found.append(_parameter(known, kind))
    return found


def _parameter(known: Field[Any], kind: Any) -> inspect.Parameter:
    """What typer reads: a choice is a word whose check belongs to the settings, several values are a repeated flag."""
    shown, default = known.metadata, known.metadata.get("command_line", known.default)
    if unit := shown.get("unit"):
        kind = float | None if NoneType in get_args(kind) else float
        default = None if default is None else default / unit
    elif get_origin(kind) is tuple:
        kind, default = list[get_args(kind)[0]] | None, None  # type: ignore[misc]
    elif Literal in [get_origin(part) for part in (kind, *get_args(kind))]:
        kind = str
    flag = [shown["flag"]] if "flag" in shown else []
    option = typer.Option(*flag, help=shown["help"], min=shown.get("least"))
    return inspect.Parameter(
        known.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )


def _gather(settings: type[Settings], given: dict[str, Any], is_option: Callable[[Field[Any]], bool]) -> Settings:
    """Takes the options of a settings class out of what was `given`, and returns the class with them."""
    values, hints = {}, get_type_hints(settings)
    for known in fields(settings):  # type: ignore[arg-type]
        if is_dataclass(kind := hints[known.name]):
            values[known.name] = _gather(kind, given, is_option)  # type: ignore[arg-type]
        elif is_option(known):
            values[known.name] = _value(known, kind, given.pop(known.name))
    return settings(**values)


def _value(known: Field[Any], kind: Any, given: Any) -> Any:
    if get_origin(kind) is tuple:
        return tuple(given) if given else known.default
    unit = known.metadata.get("unit")
    if unit is None or given is None:
        return given
    return int(given * unit) if int in get_args(kind) else given * unit
