from __future__ import annotations

import os
from pathlib import Path

import pytest

from asyncpool._runtime.sandbox.folders import PrivateFolders, remove_tree


def test_only_its_owner_enters_a_folder_and_it_goes_with_the_rest() -> None:
    folders = PrivateFolders(None)
    one, other = Path(folders.make("1")), Path(folders.make("2"))
    assert one.parent == other.parent
    assert {path.stat().st_mode & 0o777 for path in (one, one.parent)} == {0o700}
    folders.remove("1")
    assert not one.exists()
    assert other.exists()
    folders.remove("1")  # again, which does no harm
    folders.close()
    assert not other.parent.exists()
    folders.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_another_user_has_his_folder_and_cannot_list_those_of_others() -> None:
    folders = PrivateFolders((65534, 65534))
    try:
        folder = Path(folders.make("1"))
        assert folder.stat().st_uid == 65534
        assert folder.parent.stat().st_mode & 0o777 == 0o711
    finally:
        folders.close()


def test_a_tree_deeper_than_any_stack_is_removed(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    fd = os.open(tmp_path / "tree", os.O_RDONLY)
    for level in range(3000):
        os.close(os.open(f"file{level}", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        os.mkdir("deeper", dir_fd=fd)
        inner = os.open("deeper", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    remove_tree(str(tmp_path), "tree")
    assert list(tmp_path.iterdir()) == []


def test_no_link_is_followed_and_closed_folders_are_opened(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    kept.chmod(0o500)
    tree = tmp_path / "tree"
    (tree / "closed" / "inner").mkdir(parents=True)
    (tree / "closed" / "link").symlink_to(kept)
    (tree / "link").symlink_to(kept)
    (tree / "closed").chmod(0)
    remove_tree(str(tmp_path), "tree")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert kept.stat().st_mode & 0o777 == 0o500
    assert (kept / "file").read_text() == "x"
    kept.chmod(0o700)
