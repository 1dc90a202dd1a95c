"""Facts of the machine and of this process: processors, memory, cgroups, GPUs, threads, clocks.

The lowest room: every other package may import ``host``, and ``host`` imports only ``errors``.

Start here:
    ``host.headroom.HeadroomProbe``: bytes that the machine can still give to this process,
    the least of ``MemAvailable`` and of every cgroup above it.
    ``host.supervision.Supervisor``: starts, watches, ends and restarts one subprocess.
    All subprocesses of the library go through it. ``threads.LoaderThread``: a daemon thread with a
    name that ``top -H`` shows.

``units`` reads and prints sizes ("5GB") and durations. ``extras.needs`` turns a missing optional
package into an error that names the extra. ``files`` makes files and folders that no other user
can change.

Never here: decisions (``controller``), files of datasets (``storage``, ``formats``).
"""
