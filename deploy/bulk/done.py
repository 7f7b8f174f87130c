"""What is done: the rows of the output's files that were written to their end, by the ids of those rows.

It knows no Ray. Ray Data's own checkpoint would do the same, but what leaves out rows there holds a core, and its ids
are lost with a node: where encoders that began anew had taken every core that was left, each waited for the other.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from pyarrow.dataset import dataset
from pyarrow.fs import FileSelector, FileSystem


def find_done(output: str) -> list[str]:
    """The files of a folder that are whole; Parquet files that are not, of a run that was killed, are deleted.

    Args:
        output: URI of the folder.

    Returns:
        Paths in the URI's file system.
    """
    filesystem, folder = FileSystem.from_uri(output)
    whole: list[str] = dataset(folder, filesystem=filesystem, format="parquet", exclude_invalid_files=True).files
    found = {file.path for file in filesystem.get_file_info(FileSelector(folder)) if file.extension == "parquet"}
    for path in found.difference(whole):
        filesystem.delete_file(path)
    return whole


class LeaveOutDone:
    """Leaves out the rows whose ids those files have.

    It is told the files that a run began with: where it begins anew on another node it must give the same rows once
    more, whatever was written meanwhile.
    """

    def __init__(self, output: str, files: Sequence[str], id_column: str) -> None:
        filesystem, _ = FileSystem.from_uri(output)
        done = dataset(list(files), filesystem=filesystem, format="parquet").to_table(columns=[id_column])
        self._done = np.sort(done[id_column].to_numpy())
        self._id_column = id_column

    def __call__(self, table: pa.Table) -> Iterator[pa.Table]:
        """The other rows, if there are any."""
        ids = table[self._id_column].to_numpy()
        places = np.searchsorted(self._done, ids)
        is_new = places == len(self._done)
        is_new[~is_new] = self._done[places[~is_new]] != ids[~is_new]
        if is_new.any():
            yield table.filter(pa.array(is_new))
