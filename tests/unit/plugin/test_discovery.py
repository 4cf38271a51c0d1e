"""Installed plugins by their metadata alone, from dist-info folders made by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import llmb
from llmb.errors import UnavailableError
from llmb.plugin import discovery
from llmb.plugin.discovery import BUILT_IN, InstalledPlugin
from tests.unit.builders_runtime import install

BOMB = "raise SystemExit('a plugin was imported')\n"


def test_vendors_come_by_name_before_the_built_in_ones_and_nothing_is_imported(site: Path) -> None:
    install(site, "llmb-zeta", {"zeta": "zeta_llmb"}, {"zeta_llmb.py": BOMB}, "2.5")
    install(site, "llmb-alpha", {"alpha": "alpha_llmb.hooks"}, {"alpha_llmb/__init__.py": BOMB})
    found = discovery.installed()
    names = [plugin.name for plugin in found]
    assert names[-2:] == list(BUILT_IN)
    assert names[:-2] == sorted(names[:-2])
    assert InstalledPlugin("zeta", "zeta_llmb", "llmb-zeta", "2.5") in found
    assert InstalledPlugin("alpha", "alpha_llmb.hooks", "llmb-alpha", "1.0") in found
    assert not {"zeta_llmb", "alpha_llmb"} & set(sys.modules)


def test_the_built_in_plugins_are_known_without_any_package_metadata(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(discovery, "distributions", list)
    assert [(p.name, p.distribution, p.version) for p in discovery.installed()] == [
        ("cpu", "llmb", llmb.__version__),
        ("generic", "llmb", llmb.__version__),
    ]
    assert all(p.built_in for p in discovery.installed())


def test_entry_points_of_other_programs_are_no_plugins(site: Path) -> None:
    info = install(site, "other", {})
    (info / "entry_points.txt").write_text("[console_scripts]\nother = other:main\n")
    assert "other" not in [plugin.name for plugin in discovery.installed()]


def test_two_packages_of_one_name_are_listed_once_and_refused_naming_both(site: Path) -> None:
    install(site, "llmb-one", {"fast": "one"})
    install(site, "llmb-two", {"fast": "two"})
    (listed,) = (plugin for plugin in discovery.installed() if plugin.name == "fast")
    assert listed.fault is not None
    with pytest.raises(UnavailableError, match=r"'fast'.*llmb-\w+ and by llmb-\w+: uninstall") as e:
        discovery.find("fast")
    assert str(e.value) == listed.fault
    assert {"llmb-one", "llmb-two"} <= set(str(e.value).replace(":", "").split())


def test_a_clash_of_names_leaves_every_other_plugin_usable(site: Path) -> None:
    install(site, "llmb-one", {"fast": "one"})
    install(site, "llmb-two", {"fast": "two", "sound": "two"})
    assert discovery.find("sound").fault is None
    assert discovery.find("cpu").fault is None


@pytest.mark.parametrize("name", list(BUILT_IN))
def test_a_package_that_takes_a_built_in_name_is_refused(site: Path, name: str) -> None:
    install(site, "llmb-impostor", {name: "impostor"})
    assert [plugin.name for plugin in discovery.installed()].count(name) == 1
    with pytest.raises(UnavailableError, match=f"'{name}'.*llmb itself and by llmb-impostor"):
        discovery.find(name)


def test_one_package_seen_twice_on_the_path_is_one_plugin(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site, "llmb-fast", {"fast": "fast"})
    install(site / "again", "llmb-fast", {"fast": "fast"})
    monkeypatch.setattr(sys, "path", [*sys.path, str(site / "again")])
    assert [p.name for p in discovery.installed()].count("fast") == 1


def test_of_one_package_in_two_versions_the_first_on_the_path_counts(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site, "llmb-fast", {"fast": "fast"}, version="2.0")
    install(site / "old", "llmb-fast", {"fast": "fast"}, version="1.0")
    monkeypatch.setattr(sys, "path", [*sys.path, str(site / "old")])
    assert discovery.find("fast").version == "2.0"


def test_packages_that_torch_loads_by_itself_are_named_with_their_version(site: Path) -> None:
    info = install(site, "torch-warp", {}, version="2.5")
    (info / "entry_points.txt").write_text("[torch.backends]\ntorch_warp = torch_warp:autoload\n")
    install(site, "llmb-fast", {"fast": "fast"})
    found = discovery.torch_extensions()
    assert found["torch-warp"] == "2.5"
    assert "llmb-fast" not in found


def test_of_a_torch_extension_in_two_versions_the_first_on_the_path_is_named(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, version in ((site, "2.0"), (site / "old", "1.0")):
        info = install(folder, "torch-warp", {}, version=version)
        (info / "entry_points.txt").write_text("[torch.backends]\nwarp = torch_warp:autoload\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(site / "old")])
    assert discovery.torch_extensions()["torch-warp"] == "2.0"


def test_one_package_may_bring_several_plugins(site: Path) -> None:
    install(site, "llmb-fast", {"fast": "fast", "faster": "fast.er"})
    assert discovery.find("fast").module == "fast"
    assert discovery.find("faster").module == "fast.er"


def test_a_plugin_that_is_not_installed_is_refused_with_installed_and_nearest_names() -> None:
    with pytest.raises(UnavailableError, match=r"'warp'.*cpu, generic\): see the vendor's page"):
        discovery.find("warp")
    with pytest.raises(UnavailableError, match=r"; did you mean generic\?$"):
        discovery.find("generik")


def test_a_plugin_in_a_checkout_is_installed_from_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "plugins" / "llmb-warp"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert "pip" not in discovery.source_of("warp"), "an empty folder is no package"
    (folder / "pyproject.toml").touch()
    assert discovery.source_of("warp") == "pip install ./plugins/llmb-warp"
    assert "pip" not in discovery.source_of("warp; rm -rf ~")
    monkeypatch.chdir("/")
    monkeypatch.setattr(discovery, "_TREE", tmp_path)
    assert discovery.source_of("warp") == f"pip install {folder}"


@pytest.mark.parametrize("module", ["acme_llmb", "acme_llmb.hooks"])
def test_the_sources_of_a_package_are_named_from_the_folder_above_it(
    site: Path, module: str
) -> None:
    install(site, "acme", {}, {"acme_llmb/__init__.py": BOMB, "acme_llmb/hooks.py": BOMB})
    assert discovery.source_root(module) == discovery.SourceRoot("acme_llmb", site.resolve())
    assert "acme_llmb" not in sys.modules


def test_the_source_of_a_single_module_is_named_from_its_own_folder(site: Path) -> None:
    install(site, "solo", {}, {"solo_llmb.py": BOMB})
    assert discovery.source_root("solo_llmb") == discovery.SourceRoot("solo_llmb", site.resolve())
    assert "solo_llmb" not in sys.modules


@pytest.mark.parametrize("module", list(BUILT_IN.values()))
def test_the_sources_of_a_built_in_plugin_are_the_built_in_folder_alone(module: str) -> None:
    root = discovery.source_root(module)
    assert root.package == "llmb.plugin.builtin"
    assert root.folder == Path(llmb.__file__).resolve().parent.parent


def test_built_in_sources_are_found_without_importing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*BUILT_IN.values()]:
        monkeypatch.delitem(sys.modules, name, raising=False)
        discovery.source_root(name)
        assert name not in sys.modules


def test_a_package_that_has_gone_is_refused_by_name() -> None:
    with pytest.raises(UnavailableError, match=r"'gone_llmb'.*reinstall"):
        discovery.source_root("gone_llmb.hooks")


def test_a_folder_without_a_file_of_its_own_is_refused_by_name(site: Path) -> None:
    (site / "bare_llmb").mkdir()
    with pytest.raises(UnavailableError, match=r"'bare_llmb'.*put an __init__\.py into it"):
        discovery.source_root("bare_llmb")


# -- LLMB_LOAD_PLUGINS ------------------------------------------------------------------------


@pytest.fixture
def three(site: Path) -> None:
    """Install the plugins ``one``, ``two`` and ``three``, each in a package of its own."""
    for name in ("one", "two", "three"):
        install(site, f"llmb-{name}", {name: name}, {f"{name}.py": BOMB})


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, {"one", "two", "three"}),
        ("", set()),
        (" , ", set()),
        ("two", {"two"}),
        ("one,three", {"one", "three"}),
        (" one , llmb-three ", {"one", "three"}),
        ("llmb_two", {"two"}),
        ("LLMB.Two", {"two"}),
        ("nobody", set()),
        ("nobody,one", {"one"}),
        ("on", set()),
        ("cpu", set()),
    ],
)
def test_the_variable_restricts_vendors_plugins_by_name_or_distribution_and_never_the_built_in(
    monkeypatch: pytest.MonkeyPatch, value: str | None, expected: set[str]
) -> None:
    monkeypatch.delenv(discovery.LOAD_PLUGINS, raising=False)
    if value is not None:
        monkeypatch.setenv(discovery.LOAD_PLUGINS, value)
    names = {plugin.name for plugin in discovery.installed()}
    assert names & {"one", "two", "three"} == expected
    assert set(BUILT_IN) <= names


@pytest.mark.usefixtures("three")
def test_a_plugin_that_is_left_out_is_refused_with_the_variable_that_does_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(discovery.LOAD_PLUGINS, "one, llmb-two")
    words = "'three' is installed, but LLMB_LOAD_PLUGINS='one, llmb-two' leaves it out"
    with pytest.raises(UnavailableError, match=words):
        discovery.find("three")
    with pytest.raises(UnavailableError, match="no plugin 'four' is installed"):
        discovery.find("four")
    assert discovery.find("two").distribution == "llmb-two"


@pytest.mark.usefixtures("three")
def test_what_the_variable_leaves_out_and_names_in_vain_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(discovery.LOAD_PLUGINS, raising=False)
    assert (discovery.left_out(), discovery.unknown_names()) == ((), ())
    monkeypatch.setenv(discovery.LOAD_PLUGINS, "one,LLMB_Two,cpu,llmb,nobody,llmb-gone")
    assert "three" in [plugin.name for plugin in discovery.left_out()]
    assert not {"one", "two"} & {plugin.name for plugin in discovery.left_out()}
    assert discovery.unknown_names() == ("llmb-gone", "nobody")


def test_of_two_packages_of_one_name_the_one_that_is_not_left_out_is_the_one_that_is_loaded(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("llmb-first", "llmb-second"):
        module = package.replace("-", "_")
        install(site, package, {"fast": module}, {f"{module}.py": ""})
    for package in ("llmb-first", "llmb-second"):
        monkeypatch.setenv(discovery.LOAD_PLUGINS, package)
        found = discovery.find("fast")
        assert (found.distribution, found.fault) == (package, None)
        assert discovery.entry_point(found).load().__name__ == package.replace("-", "_")
    monkeypatch.setenv(discovery.LOAD_PLUGINS, "fast")
    with pytest.raises(UnavailableError, match="uninstall"):
        discovery.find("fast")


# -- damaged packages -------------------------------------------------------------------------


def test_a_package_without_metadata_does_not_hide_the_others(site: Path) -> None:
    info = install(site, "llmb-bare", {"bare": "bare"})
    (info / "METADATA").unlink()
    install(site, "llmb-sound", {"sound": "sound"})
    assert discovery.find("sound").version == "1.0"
    assert discovery.find("bare").module == "bare"


@pytest.mark.parametrize("text", ["[llmb]\njust words\n", "[llmb]\n= nothing\n", "\0[llmb"])
def test_entry_points_that_cannot_be_read_do_not_hide_those_of_other_packages(
    site: Path, text: str
) -> None:
    (install(site, "llmb-torn", {}) / "entry_points.txt").write_text(text)
    install(site, "llmb-sound", {"sound": "sound"})
    assert discovery.find("sound").fault is None


def test_an_entry_point_that_names_no_module_is_still_listed(site: Path) -> None:
    install(site, "llmb-odd", {"odd": "not a module!"})
    assert discovery.find("odd").module == "not a module!"


def test_what_torch_loads_by_itself_is_known_by_name_target_and_package(site: Path) -> None:
    info = install(site, "torch-warp", {}, version="2.5")
    (info / "entry_points.txt").write_text("[torch.backends]\nwarp = torch_warp:autoload\n")
    expected = discovery.TorchExtension(
        name="warp", target="torch_warp:autoload", distribution="torch-warp", version="2.5"
    )
    assert expected in discovery.torch_entry_points()


def test_a_folder_or_module_is_its_packages_by_its_own_list_or_by_its_files(site: Path) -> None:
    record = '"acme_a/x,y.py",,\nacme_b.so,,\nacme_c/d/e.txt,,\n../../../bin/acme_f,,\n'
    (install(site, "acme-seen", {}) / "RECORD").write_text(record)
    (install(site, "acme-told", {}) / "top_level.txt").write_text("acme_a\nacme_g\n")
    whose = {top: {*discovery.owners(top)} for top in ("acme_a", "acme_b", "acme_c", "acme_g")}
    assert whose == {
        "acme_a": {"acme-seen", "acme-told"},
        "acme_b": {"acme-seen"},
        "acme_c": {"acme-seen"},
        "acme_g": {"acme-told"},
    }


@pytest.mark.parametrize("top", ["..", "acme_f", "acme_h"])
def test_what_no_package_brings_is_nobodys(site: Path, top: str) -> None:
    (install(site, "acme-seen", {}) / "RECORD").write_text("../../../bin/acme_f,,\n")
    assert discovery.owners(top) == ()


def test_a_package_mentions_what_any_of_its_lines_names(site: Path) -> None:
    info = install(site, "acme-needy", {})
    lines = "Requires-Dist: One.two>=1; extra == 'x'\nRequires-Dist: three [y] (<2)\n"
    with (info / "METADATA").open("a") as metadata:
        metadata.write(f"{lines}\nRequires-Dist: no-line-of-the-metadata\n")
    assert discovery.mentioned("acme_needy") == ("One.two", "three")
