"""Decisions: keeps the RAM floor and moves knobs while a run goes on; host profiles.

Readings come in, decisions come out; nothing here applies one. So every decision of a run can be
derived again from its log (``autoloader replay``).

Start here:
    ``policy``: once a second: which knob to change, and whether the last change paid.
    ``reflex``: five or ten times a second: headroom alone; closes the gate or frees buffers.
    ``admission``: whether a start fits above the floor, and with which knobs.
    ``states``: the states and all transitions, as data.
    ``profile.Profile``: starting knobs for a kind of host, saved by ``autoloader.tune``.

Never here: applying a change (``process.control``), searching offline (``tune``).
"""
