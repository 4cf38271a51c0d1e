"""The kinds of job files, and which keys of a site file each has a place for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llmb.errors import UsageError
from llmb.parallel.jobs import kubernetes, scripts
from llmb.parallel.jobs.job import LaunchJob
from llmb.parallel.jobs.site import Site

#: Names that are kept for a kind that has another now.
ALIASES = {"k8s": "trainjob"}
_SHARED = {"image", "interface", "environment", "ranks_per_node"}
_SHELL = _SHARED | {"modules", "venv", "container"}
_QUEUED = _SHELL | {"account", "partition", "directives"}
_CLUSTER = _SHARED | {"resource", "limits", "claim"}


@dataclass(frozen=True)
class Scheduler:
    """One kind of job file."""

    name: str
    write: Callable[[LaunchJob], str]
    #: Keys of a site file that this kind has a place for.
    keys: frozenset[str]
    #: Pods run an image, whatever the site.
    needs_image: bool = False
    #: Whoever starts the ranks ends them after ``--minutes``.
    has_limit: bool = True

    def check(self, site: Site) -> None:
        """Refuse a site with a key that would be lost in this kind of file.

        Raises:
            UsageError: it has one, or an image that nothing would start, or none where one must be.
        """
        lost = [name for name in site.model_fields_set if name not in self.keys]
        if lost:
            known = ", ".join(name for name in Site.model_fields if name in self.keys)
            raise UsageError(f"{lost[0]}: {self.name} has no place for it; it takes {known}")
        if self.needs_image and site.image is None:
            raise UsageError(
                f"--print {self.name}: name a container image with llmb in it: --image "
                "registry.example/llmb:latest, or image in the file of --site"
            )
        if site.image is None and any("{image}" in word for word in site.container):
            raise UsageError("container: it starts {image}: add the key image, or --image")
        if site.image is not None and not (self.needs_image or site.container):
            raise UsageError(
                f"image: {self.name} starts no container by itself; the key container of a site "
                'file says how: container = ["apptainer", "exec", "{image}"]'
            )


SCHEDULERS = {
    each.name: each
    for each in (
        Scheduler("slurm", scripts.slurm, frozenset(_QUEUED | {"qos", "constraint"})),
        Scheduler("pbs", scripts.pbs, frozenset(_QUEUED)),
        Scheduler("trainjob", kubernetes.trainjob, frozenset(_CLUSTER), needs_image=True),
        Scheduler("jobset", kubernetes.jobset, frozenset(_CLUSTER), needs_image=True),
        Scheduler("torchrun", scripts.torchrun, frozenset(_SHELL), has_limit=False),
    )
}
