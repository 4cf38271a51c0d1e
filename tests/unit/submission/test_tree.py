"""What a pull request may do to the folder of submissions: tricks on a real clone are refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from llmb.errors import BundleRefusedError, UsageError
from llmb.submission import owners
from llmb.submission.package import package, sign, submission_of
from llmb.submission.tree import verify_tree
from tests import builders, needs

ACCOUNT = "jane-acme"


@pytest.fixture(scope="module", autouse=True)
def programs() -> None:
    needs.program("ssh-keygen")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("keys")
    for name in ("acme", "mallory"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(command, check=True)
    return {name: folder / name for name in ("acme", "mallory")}


def line_of(keys: dict[str, Path], name: str, owner: str | None = None, words: str = "") -> str:
    public = " ".join(keys[name].with_suffix(".pub").read_text().split()[:2])
    return f'{owner or name} namespaces="llmb-bundle" {public} {words}\n'


def hand_in(root: Path, keys: dict[str, Path], name: str, run: int, **more: str) -> Path:
    """Package run number ``run`` for ``name``, signed with the key of ``key``."""
    record = builders.make_record(1, run_id=f"{run:032x}")
    source = builders.write(root.parent / "runs" / f"{name}{run}", builders.run_files(record))
    whose = submission_of(more.get("submitter", name), "box", more.get("organisation"))
    key = keys[more.get("key", name)] if more.get("key") != "none" else None
    (path,) = package([source], whose, root, key=key)
    return path


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory, keys: dict[str, Path]) -> Path:
    """A repository with a README, acme's key and two bundles of acme."""
    root = tmp_path_factory.mktemp("clone") / "submissions"
    root.mkdir()
    (root / "README.md").write_text("# Submissions\n")
    (root / "leaderboard.md").write_text("made\n")
    (root / "allowed_signers").write_text(
        "# owners\n" + line_of(keys, "acme", words=f"Acme, Inc. @{ACCOUNT}")
    )
    hand_in(root, keys, "acme", 1 << 100)
    hand_in(root, keys, "acme", 2 << 100)
    git(root.parent, "init", "-q")
    git(root.parent, "add", "-A")
    git(root.parent, "commit", "-qm", "before")
    return root


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def tree(before: Path, tmp_path: Path) -> Path:
    shutil.copytree(before.parent, tmp_path / "clone", symlinks=True)
    return tmp_path / "clone" / "submissions"


def faults(tree: Path, author: str | None = None) -> list[str]:
    found = verify_tree(tree, "HEAD", author).faults
    return [f"{fault.path}: {fault.reason}" for fault in found]


def bundles_of(tree: Path, owner: str = "acme") -> list[Path]:
    return sorted(path.parent for path in (tree / owner).rglob("MANIFEST.json"))


def test_nothing_is_wrong_where_nothing_was_changed(tree: Path) -> None:
    assert faults(tree) == []
    whole = verify_tree(tree)
    assert (whole.faults, len(whole.bundles)) == ((), 2)


def test_an_owner_adds_a_signed_bundle_and_it_alone_is_looked_at(tree: Path, keys) -> None:
    path = hand_in(tree, keys, "acme", 3 << 100)
    (tree / "leaderboard.md").write_text("made again\n")
    found = verify_tree(tree, "HEAD")
    assert found.faults == ()
    assert list(found.bundles) == [path.relative_to(tree).as_posix()]
    assert found.bundles[path.relative_to(tree).as_posix()].signatures[0].principal == "acme"


def test_a_new_owner_comes_with_a_key_and_a_bundle(tree: Path, keys) -> None:
    hand_in(tree, keys, "mallory", 3 << 100)
    assert "list a key of 'mallory'" in faults(tree)[0]
    with (tree / "allowed_signers").open("a") as file:
        file.write(line_of(keys, "mallory"))
    assert faults(tree) == []


def test_an_owner_takes_a_bundle_away_and_nobody_else_does(tree: Path, keys) -> None:
    shutil.rmtree(bundles_of(tree)[0])
    hand_in(tree, keys, "acme", 3 << 100)  # writes the index without the one that is gone
    for author in (None, "mallory", "acme"):
        (fault,) = faults(tree, author)
        assert "takes a bundle away of 'acme'" in fault
    assert faults(tree, ACCOUNT) == []
    assert faults(tree, ACCOUNT.upper()) == []


def test_an_owner_may_add_a_signature_to_a_bundle_that_is_there(tree: Path, keys) -> None:
    sign([bundles_of(tree)[0]], keys["mallory"])
    assert faults(tree, ACCOUNT) == []


# -- tricks ----------------------------------------------------------------------------------------


def zipped(tree: Path, keys: dict[str, Path]) -> None:
    with zipfile.ZipFile(tree / "acme/box/zz.zip", "w") as archive:
        archive.writestr("record.json", "{}")


def zip_beside(tree: Path, keys: dict[str, Path]) -> None:
    with zipfile.ZipFile(bundles_of(tree)[0].with_suffix(".zip"), "w") as archive:
        archive.writestr("record.json", "{}")


def three_files(tree: Path, keys: dict[str, Path]) -> None:
    builders.write(tree / "acme/box/work/run", {"record.json": b"{}", "audit.json": b"{}"})


def unlisted(tree: Path, keys: dict[str, Path]) -> None:
    index = (tree / "acme/box/system.json").read_bytes()
    hand_in(tree, keys, "acme", 3 << 100)
    (tree / "acme/box/system.json").write_bytes(index)


def edited(tree: Path, keys: dict[str, Path]) -> None:
    (bundles_of(tree)[0] / "log.txt").write_text("another story\n")


def added_file(tree: Path, keys: dict[str, Path]) -> None:
    (bundles_of(tree)[0] / "more.txt").write_text("more\n")


def half_deleted(tree: Path, keys: dict[str, Path]) -> None:
    (bundles_of(tree)[0] / "record.json").unlink()


def deleted(tree: Path, keys: dict[str, Path]) -> None:
    shutil.rmtree(tree / "acme")


def junk_signature(tree: Path, keys: dict[str, Path]) -> None:
    builders.write(bundles_of(tree)[0], {"SIGNATURES/junk.sig": b"junk\n"})


def index_edited(tree: Path, keys: dict[str, Path]) -> None:
    path = tree / "acme/box/system.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"availability": "research"}))


def two_owners(tree: Path, keys: dict[str, Path]) -> None:
    with (tree / "allowed_signers").open("a") as file:
        file.write(line_of(keys, "mallory"))
    hand_in(tree, keys, "mallory", 3 << 100)
    hand_in(tree, keys, "acme", 4 << 100)


def in_anothers_folder(tree: Path, keys: dict[str, Path]) -> None:
    hand_in(tree, keys, "mallory", 3 << 100, submitter="acme")


def unsigned(tree: Path, keys: dict[str, Path]) -> None:
    hand_in(tree, keys, "acme", 3 << 100, key="none")


def own_key_for_another(tree: Path, keys: dict[str, Path]) -> None:
    with (tree / "allowed_signers").open("a") as file:
        file.write(line_of(keys, "mallory", "acme"))
    in_anothers_folder(tree, keys)


def shared_key(tree: Path, keys: dict[str, Path]) -> None:
    with (tree / "allowed_signers").open("a") as file:
        file.write(line_of(keys, "mallory", "mallory,acme"))
    hand_in(tree, keys, "mallory", 3 << 100)


def key_replaced(tree: Path, keys: dict[str, Path]) -> None:
    (tree / "allowed_signers").write_text(line_of(keys, "mallory", "acme"))


def stolen(tree: Path, keys: dict[str, Path]) -> None:
    """Copy acme's signed bundle, index and all, into a folder of one's own."""
    with (tree / "allowed_signers").open("a") as file:
        file.write(line_of(keys, "mallory"))
    shutil.copytree(tree / "acme", tree / "mallory")
    index = json.loads((tree / "mallory/box/system.json").read_bytes())
    (tree / "mallory/box/system.json").write_text(json.dumps(index | {"submitter": "mallory"}))


def renamed(tree: Path, keys: dict[str, Path]) -> None:
    path = hand_in(tree, keys, "acme", 3 << 100)
    index = (tree / "acme/box/system.json").read_text()
    path.rename(path.with_name("faster"))
    (tree / "acme/box/system.json").write_text(index.replace(path.name, "faster"))


def look_alike(tree: Path, keys: dict[str, Path]) -> None:
    shutil.copytree(tree / "acme", tree / "\u0430cme")


def linked(tree: Path, keys: dict[str, Path]) -> None:
    (tree / "mallory").symlink_to(tree / "acme")


def hidden(tree: Path, keys: dict[str, Path]) -> None:
    builders.write(tree / ".github/workflows/work/run", {"x.yml": b"on: push\n"})


def another_readme(tree: Path, keys: dict[str, Path]) -> None:
    (tree / "README.md").write_text("mallory won\n")


def recomputed_list(tree: Path, keys: dict[str, Path]) -> None:
    one = {"llmb_version": "0.2.0", "date": "2026-11-26", "steps": 66, "of_steps": 66}
    data = {"schema": "llmb.recomputed/1", "bundles": {"a" * 64: one}}
    (tree / "recomputed.json").write_text(json.dumps(data))


def older_form(tree: Path, keys: dict[str, Path]) -> None:
    path = hand_in(tree, keys, "acme", 3 << 100)
    files = builders.run_files(
        builders.edited(
            builders.make_record(1, run_id=f"{3 << 100:032x}"),
            lambda data: data.update(llmb_version="0.1.0"),
        )
    )
    shutil.rmtree(path)
    builders.write(path, builders.older_manifest(files))


def own_authority(tree: Path, keys: dict[str, Path]) -> None:
    (tree / "authorities.pem").write_text("-----BEGIN CERTIFICATE-----\n")


def comment_added(tree: Path, keys: dict[str, Path]) -> None:
    with (tree / "allowed_signers").open("a") as file:
        file.write("# the key of acme was stolen\n")


def leaderboard_deleted(tree: Path, keys: dict[str, Path]) -> None:
    (tree / "leaderboard.md").unlink()


def executable(tree: Path, keys: dict[str, Path]) -> None:
    (bundles_of(tree)[0] / "record.json").chmod(0o755)
    git(tree, "add", "-A")


def repository_inside(tree: Path, keys: dict[str, Path]) -> None:
    commit = "160000," + "1" * 40
    git(tree, "update-index", "--add", "--cacheinfo", f"{commit},submissions/acme/box/more")


def moved_behind_a_link(tree: Path, keys: dict[str, Path]) -> None:
    """Let another folder, which the base does not have, take the place of the submissions."""
    shutil.move(tree, tree.with_name("mine"))
    shutil.rmtree(tree.with_name("mine") / "acme")
    (tree.with_name("mine") / "README.md").unlink()
    tree.symlink_to("mine")


def attributes_above(tree: Path, keys: dict[str, Path]) -> None:
    (tree.parent / ".gitattributes").write_text("submissions/** text eol=crlf\n")


def taken_away_before(tree: Path, keys: dict[str, Path]) -> None:
    """Hand in a bundle, signature and all, that the maintainers have taken away."""
    path = bundles_of(tree)[0]
    shutil.copytree(path, tree.parent / "kept")
    shutil.rmtree(path)
    git(tree, "add", "-A", ".")
    git(tree, "commit", "-qm", "retracted")
    shutil.move(tree.parent / "kept", path)


def anothers_organisation(tree: Path, keys: dict[str, Path]) -> None:
    with (tree / "allowed_signers").open("a") as file:
        file.write(line_of(keys, "mallory", words="Mallory Ltd"))
    hand_in(tree, keys, "mallory", 3 << 100, organisation="Acme, Inc.")


#: Trick -> what is done, and what the line says that refuses it (docs/how-to-lie.md lists them).
TRICKS: dict[Callable[[Path, dict[str, Path]], None], tuple[str, str]] = {
    zipped: ("A zip lies in a system's folder.", "acme/box/zz.zip: lies outside of every bundle"),
    zip_beside: ("A zip lies beside a bundle.", "lies outside of every bundle"),
    three_files: ("Two JSON files lie where a bundle would.", "has no MANIFEST.json"),
    unlisted: ("A bundle is not in the index of its system.", "is not listed"),
    edited: ("A file of a bundle is edited.", "a bundle is never edited"),
    added_file: ("A file is added to a bundle.", "a bundle is never edited"),
    half_deleted: ("A file of a bundle is deleted.", "a bundle is never edited"),
    deleted: ("All bundles of a different owner are deleted.", "takes a bundle away of 'acme'"),
    junk_signature: (
        "A junk signature gets Acme's bundle refused.",
        "adds a signature to a bundle",
    ),
    index_edited: ("The index of Acme's system is edited.", "changes an index of 'acme'"),
    two_owners: ("One change adds bundles of two owners.", "changes folders of acme and mallory"),
    in_anothers_folder: (
        "A bundle that claims to be Acme's is signed by Mallory.",
        "not signed by 'acme'",
    ),
    unsigned: ("A bundle is not signed.", "not signed, and a signer is asked for"),
    own_key_for_another: (
        "The same, and Mallory's key is added for Acme.",
        "adds a key of 'acme'",
    ),
    shared_key: ("Mallory's key is added for Mallory and Acme.", "adds a key of 'acme'"),
    key_replaced: ("Acme's key is replaced by Mallory's.", "changes a line of acme"),
    stolen: ("Acme's signed bundle is copied into Mallory's folder.", "says it is of acme/box"),
    renamed: ("A bundle lies under a name different from its record's.", "its place is"),
    look_alike: ("A folder is named \u0430cme, with a Cyrillic letter.", "is not made of a-z"),
    linked: ("A folder is a link to Acme's.", "mallory: is a link"),
    hidden: ("A workflow lies in a hidden folder.", ".github: is a hidden folder"),
    another_readme: ("README.md says who won.", "is no part of a submission"),
    recomputed_list: ("A bundle is listed as recomputed.", "is no part of a submission"),
    older_form: (
        "A bundle has the older form, without an owner.",
        "is not of schema llmb.bundle/2",
    ),
    own_authority: (
        "A certificate of Mallory's own authority is added.",
        "authorities.pem: is no part of a submission",
    ),
    comment_added: ("`allowed_signers` has a comment on Acme.", "changes a comment"),
    leaderboard_deleted: ("A leaderboard is deleted.", "leaderboard.md: is taken away"),
    executable: ("A file of Acme's bundle becomes executable.", "is executable"),
    repository_inside: (
        "A submodule lies beside a bundle; on disk the submodule is an empty folder.",
        "acme/box/more: is a repository of its own",
    ),
    moved_behind_a_link: (
        "The folder of submissions is a link to a folder without Acme's bundles.",
        "the folder of submissions is no link",
    ),
    attributes_above: (
        "`.gitattributes` of the repository changes what a checkout writes.",
        ".gitattributes: decides what is checked out",
    ),
    taken_away_before: (
        "A signed bundle that was retracted is handed in again.",
        "was here, and was taken away",
    ),
    anothers_organisation: (
        "A bundle of Mallory names Acme's organisation.",
        "says it is of organisation 'Acme, Inc.', and allowed_signers lists 'Mallory Ltd'",
    ),
}


@pytest.mark.parametrize("trick", TRICKS, ids=lambda trick: trick.__name__)
def test_a_trick_is_refused_and_the_line_says_which(tree: Path, keys, trick) -> None:
    trick(tree, keys)
    found = faults(tree, "mallory")
    _, said = TRICKS[trick]
    assert any(said in fault for fault in found), found


def test_changed_files_outside_of_the_folder_are_named(tree: Path) -> None:
    builders.write(tree.parent, {"llmb/verify.py": b"", "setup.py": b""})
    assert verify_tree(tree, "HEAD").outside == ()
    git(tree.parent, "add", "-A")
    assert verify_tree(tree, "HEAD").outside == ("llmb/verify.py", "setup.py")


def test_what_a_tree_is_compared_with_must_be_a_commit_of_its_repository(tree: Path) -> None:
    for base in ("nothing", "", "--help"):
        with pytest.raises(UsageError, match="is no commit"):
            verify_tree(tree, base)
    with pytest.raises(UsageError, match="there is no folder"):
        verify_tree(tree / "nowhere", "HEAD")


# -- the list of owners ----------------------------------------------------------------------------


def test_a_line_has_ids_a_key_an_organisation_and_accounts(keys) -> None:
    (one,) = owners.read(b"# x\n\n" + line_of(keys, "acme", words="Acme, Inc. @Jane @bot").encode())
    assert one.owners == {"acme"}
    assert (one.organisation, one.accounts) == ("Acme, Inc.", {"jane", "bot"})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("acme", "is not: id, options, public key"),
        ("* ssh-ed25519 AAAA", "is not made of a-z"),
        ("acme,Beta ssh-ed25519 AAAA", "'Beta' is not made of a-z"),
        ("acme cert-authority ssh-ed25519 AAAA", "is of an authority"),
        ('acme namespaces="x",cert-authority ssh-ed25519 AAAA', "is of an authority"),
        ("acme ssh-ed25519 AAAA a\u202eb", "is not: id"),
    ],
)
def test_a_line_that_does_not_name_owners_is_refused(line: str, said: str) -> None:
    with pytest.raises(BundleRefusedError, match="line 2") as refused:
        owners.read(f"# owners\n{line}\n".encode())
    assert said in str(refused.value)
