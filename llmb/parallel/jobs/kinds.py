"""The kinds of job files, and the keys of a site file that each kind uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llmb.errors import UsageError
from llmb.parallel.jobs import kubernetes, scripts
from llmb.parallel.jobs.job import LaunchJob
from llmb.parallel.jobs.site import Site

#: Old name -> name of the kind.
ALIASES = {"k8s": "trainjob"}
_SHARED = {"image", "interface", "environment", "ranks_per_node"}
_SHELL = _SHARED | {"modules", "venv", "container"}
_QUEUED = _SHELL | {"account", "partition", "directives"}
_CLUSTER = _SHARED | {"resource", "limits", "claim"}


@dataclass(frozen=True)
class Scheduler:
    """A kind of job file."""

    name: str
    write: Callable[[LaunchJob], str]
    #: Keys of a site file that this kind uses.
    keys: frozenset[str]
    #: The job runs in a container image, whether or not the site has ``container``.
    needs_image: bool = False
    #: The scheduler ends the job after ``--minutes``.
    has_limit: bool = True

    def check(self, site: Site) -> None:
        """Refuse a site with a key that this kind does not use.

        Raises:
            UsageError: there is such a key, the image is missing, or nothing would start the image.
        """
        lost = [name for name in site.model_fields_set if name not in self.keys]
        if lost:
            known = ", ".join(name for name in Site.model_fields if name in self.keys)
            raise UsageError(f"{lost[0]}: not a key of {self.name}, which uses {known}")
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
