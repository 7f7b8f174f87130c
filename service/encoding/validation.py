"""What pydantic found wrong with a request, in one line for the caller and without anything that was sent."""

from pydantic import ValidationError

from service.errors import Invalid, MalformedBody, ServiceError

_PROBLEMS_SHOWN = 5
_PROBLEMS_READ = 1000
_NAME_SHOWN = 64  # characters of a field name, which may be a caller's own


def explain_validation(error: ValidationError) -> ServiceError:
    """The failure that the problems amount to: `MalformedBody` for no JSON, else `Invalid`."""
    if (count := error.error_count()) > _PROBLEMS_READ:  # a description of each would take more than the body
        return Invalid(f"{count} values are not what this route takes; send one of them alone to be told why")
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    if problems[0]["type"] == "json_invalid":
        return MalformedBody(f"the body is no valid JSON: {problems[0]['msg'].removeprefix('Invalid JSON: ')}")
    places = [".".join(str(part)[:_NAME_SHOWN] for part in problem["loc"]) for problem in problems]
    texts = [
        f"{place}: {message}" if place else message
        for place, message in zip(places, (p["msg"].removeprefix("Value error, ") for p in problems), strict=True)
    ]
    if len(texts) > _PROBLEMS_SHOWN:
        texts[_PROBLEMS_SHOWN:] = [f"and {len(texts) - _PROBLEMS_SHOWN} more"]
    return Invalid("; ".join(texts), param=places[0] or None)
