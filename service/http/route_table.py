"""All routes by path and method: the one place where a request finds its route."""

from collections.abc import Iterator, Mapping, Sequence
from re import Pattern
from typing import NoReturn

from starlette.requests import Request
from starlette.routing import compile_path

from service.errors import MethodNotAllowed
from service.http.route import Route

Parameters = Mapping[str, str]

_NO_PARAMETERS: Parameters = {}
_ANY_OTHER = ""  # in place of a method


class RouteTable:
    """Finds the route of a request.

    Args:
        routes: in the order in which templates with parameters are tried.
        unmatched: answers paths that none of them has; its own path is the name of such requests in log and metrics.

    Raises:
        ValueError: two routes have the same method and path.
    """

    def __init__(self, routes: Sequence[Route], unmatched: Route) -> None:
        self._routes = tuple(routes)
        self.unmatched = unmatched
        by_path = {path: _by_method(path, routes) for path in dict.fromkeys(route.path for route in routes)}
        self._exact = {path: methods for path, methods in by_path.items() if "{" not in path}
        self._templates: list[tuple[Pattern[str], dict[str, Route]]] = [
            (compile_path(path)[0], methods) for path, methods in by_path.items() if "{" in path
        ]

    def __iter__(self) -> Iterator[Route]:
        return iter(self._routes)

    def find(self, method: str, path: str) -> tuple[Route, Parameters]:
        """The route of a request and the parameters in its path; for a wrong method, one that refuses it."""
        methods = self._exact.get(path)
        if methods is not None:
            return methods.get(method) or methods[_ANY_OTHER], _NO_PARAMETERS
        for template, methods in self._templates:
            if (found := template.fullmatch(path)) is not None:
                return methods.get(method) or methods[_ANY_OTHER], found.groupdict()
        return self.unmatched, _NO_PARAMETERS

    @property
    def methods(self) -> list[str]:
        """Every method that some route is declared with."""
        return sorted({route.method for route in self._routes})

    @property
    def answer_headers(self) -> list[str]:
        """Headers that the declarations list with their answers."""
        return sorted({name for route in self._routes for name in route.answer.get("headers", ())})


def _by_method(path: str, routes: Sequence[Route]) -> dict[str, Route]:
    here = [route for route in routes if route.path == path]
    by_method = {method: route for route in here for method in route.methods}
    if len(by_method) != sum(len(route.methods) for route in here):
        raise ValueError(f"{path}: expected one route a method, got {[route.method for route in here]}")
    by_method[_ANY_OTHER] = _refusing_methods(here, sorted(by_method))
    return by_method


def _refusing_methods(here: Sequence[Route], allowed: Sequence[str]) -> Route:
    """What answers other methods of a path: 405, to whoever may call the path at all."""

    async def refuse(_request: Request) -> NoReturn:
        raise MethodNotAllowed(allowed)

    first = here[0]
    return Route(
        first.method,
        first.path,
        refuse,
        access="admin" if first.access == "admin" else "key",
        is_probe=first.is_probe,
        is_shared=first.is_shared,
        error_shape=first.error_shape,
    )
