"""Exported metrics that neither dashboard nor alerts use, each with the reason. A test holds the list."""

_INTERPRETER = "for whoever looks into the interpreter; what a collection costs shows in the event loop lag"

UNUSED = {
    "process_virtual_memory_bytes": "address space, mapped files and stacks mostly; not what is used",
    "python_info": "the interpreter's version, for whoever asks",
    "python_gc_collections_total": _INTERPRETER,
    "python_gc_objects_collected_total": _INTERPRETER,
    "python_gc_objects_uncollectable_total": _INTERPRETER,
}
