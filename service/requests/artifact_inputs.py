"""What an artifact's graph can be asked for: artifacts of earlier versions serve on, without what came later."""

from model.manifest import Manifest
from service.errors import Invalid


def require_input(manifest: Manifest, name: str, *, param: str) -> None:
    """Refuses what needs an input that the graph does not have.

    Raises:
        Invalid: saying what to do.
    """
    if name not in manifest.inputs:
        raise Invalid(
            f"{param}: the artifact served here was made before this was possible (its graph has no {name}); "
            "export the model again",
            param=param,
        )
