"""``dataclass`` of the standard library, made cheap to declare: methods are compiled when needed.

Python compiles up to seven methods of each dataclass, for 0.6 to 1 ms, when it is imported. The
package declares two hundred, and a process makes instances of a third. That was 0.2 s of processor
at the user's first import, and again in the loader's child. Here ``__init__`` is compiled at the
first instance, and the other methods are closures over the names of the fields.

``fields``, ``replace``, ``asdict``, pydantic and type checkers take the result for a dataclass. The
options are those of the standard library that the package uses.

Not here: models that check what people write (pydantic's, in ``spec``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    import dataclasses
    import operator
    import reprlib
    from collections.abc import Callable
    from functools import partial
    from typing import Any

    def dataclass(
        cls: type | None = None,
        /,
        *,
        frozen: bool = False,
        slots: bool = False,
        eq: bool = True,
        repr: bool = True,  # noqa: A002  # the standard library's name
        kw_only: bool = False,
    ) -> Any:
        """Make a class a dataclass, as ``dataclasses.dataclass`` does with these options."""
        if cls is None:
            return partial(dataclass, frozen=frozen, slots=slots, eq=eq, repr=repr, kw_only=kw_only)
        own = frozenset(vars(cls))
        made = dataclasses.dataclass(
            init=False, repr=False, eq=False, slots=slots, kw_only=kw_only
        )(cls)
        methods = {"__init__": _compiled_at_first(made, frozen)}
        if repr:
            methods["__repr__"] = _repr
        if eq:
            methods |= _comparison(made, frozen)
        if frozen:
            methods |= _FROZEN
        for name, method in methods.items():
            if name not in own:
                setattr(made, name, method)
        return made

    def _compiled_at_first(cls: type, frozen: bool) -> Callable[..., None]:
        """``__init__`` that replaces itself by the compiled one."""

        def first(self: Any, *given: Any, **named: Any) -> None:
            cls.__init__ = _compiled(cls, frozen)
            cls.__init__(self, *given, **named)

        return first

    def _compiled(cls: type, frozen: bool) -> Callable[..., None]:
        """``__init__`` of a dataclass."""
        known: dict[str, Any] = {"_set": object.__setattr__, "_absent": object()}
        given, named, body = ["self"], [], []
        for number, one in enumerate(dataclasses.fields(cls)):
            default, value = f"_default{number}", one.name
            if one.default_factory is not dataclasses.MISSING:
                known[default] = one.default_factory
                made = f"{default}()"
                default, value = "_absent", f"{made} if {one.name} is _absent else {one.name}"
                if not one.init:
                    value = made
            elif one.default is not dataclasses.MISSING:
                known[default] = one.default
                if not one.init:
                    value = default
            elif one.init:
                default = ""
            else:
                continue  # __post_init__ sets it
            if one.init:
                argument = f"{one.name}={default}" if default else one.name
                (named if one.kw_only else given).append(argument)
            body.append(
                f"_set(self, '{one.name}', {value})" if frozen else f"self.{one.name} = {value}"
            )
        if hasattr(cls, "__post_init__"):
            body.append("self.__post_init__()")
        arguments = ", ".join([*given, "*", *named] if named else given)
        # Names of fields alone are compiled, as in the standard library.
        exec(f"def __init__({arguments}):\n " + "\n ".join(body or ["pass"]), known)  # noqa: S102
        known["__init__"].__qualname__ = f"{cls.__qualname__}.__init__"
        return known["__init__"]

    @reprlib.recursive_repr()
    def _repr(self: Any) -> str:
        shown = [one.name for one in dataclasses.fields(self) if one.repr]
        parts = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
        return f"{type(self).__qualname__}({parts})"

    def _comparison(cls: type, frozen: bool) -> dict[str, Any]:
        """``__eq__``, and ``__hash__`` of frozen ones, by the fields that are compared."""
        names = [one.name for one in dataclasses.fields(cls) if one.compare]
        # Two names at least: of one alone it gives the value, and no tuple of it.
        values = operator.attrgetter(*names, *names[:1]) if names else lambda _: ()

        def equal(self: Any, other: object) -> bool:
            if other.__class__ is not self.__class__:
                return NotImplemented
            return values(self) == values(other)

        def hashed(self: Any) -> int:
            return hash(values(self))

        return {"__eq__": equal, "__hash__": hashed if frozen else None}

    def _refuse(_self: Any, name: str, *_value: Any) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot change field {name!r}")

    def _restore(self: Any, state: Any) -> None:
        """Take the values of a pickle or a copy."""
        for values in state if isinstance(state, tuple) else (state,):
            for name, value in (values or {}).items():
                object.__setattr__(self, name, value)

    _FROZEN = {"__setattr__": _refuse, "__delattr__": _refuse, "__setstate__": _restore}


__all__ = ["dataclass"]
