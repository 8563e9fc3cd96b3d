"""A router between network namespaces that delays every packet, for kernels that have no netem.

Run as a process: it makes one TUN device in each namespace, reads the packets that the namespace sends into it, and
writes each, when its time has come, into the device of the namespace that has its destination address. So everything
crosses it: TCP of any port, Ray's own included. It knows addresses (IPv4) and times, nothing of what it carries.

    python relay.py DEVICE ADDRESS=NAMESPACE_FILE...

It says `ready` on stdout when the devices are there (without addresses, and down). A line on stdin is the one-way delay
in milliseconds from then on: a round trip takes twice that. It ends when stdin does, and its devices with it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import socket
import struct
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

TUN = Path("/dev/net/tun")
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
CLONE_NEWNET = 0x40000000
MOST_PACKET_BYTES = 65536
LEAST_HEADER_BYTES = 20
DESTINATION = slice(16, 20)  # of an IPv4 header


def enter(namespace: BinaryIO) -> None:
    """Move this process (one thread) into a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"could not enter the namespace {namespace.name}")


def open_tun(device: str) -> int:
    """A new TUN device in the namespace this process is in; it is gone when the file is closed."""
    file = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI))
    return file


class Relay:
    """Moves packets between `devices`, by the address that each stands for."""

    def __init__(self, devices: dict[bytes, int]) -> None:
        self._devices = devices
        self._delay_s = 0.0
        self._waiting: deque[tuple[float, int, bytes]] = deque()

    def run(self, control: int) -> None:
        """Until `control` ends."""
        sources = [*self._devices.values(), control]
        while True:
            timeout_s = max(0.0, self._waiting[0][0] - time.monotonic()) if self._waiting else None
            ready, _, _ = select.select(sources, (), (), timeout_s)
            for source in ready:
                if source != control:
                    self._take(source)
                elif not self._obey(os.read(control, 4096)):
                    return
            self._deliver()

    def _obey(self, words: bytes) -> bool:
        if words:
            self._delay_s = float(words.split()[-1]) / 1e3
        return bool(words)

    def _take(self, source: int) -> None:
        try:
            packet = os.read(source, MOST_PACKET_BYTES)
        except BlockingIOError:
            return
        if len(packet) < LEAST_HEADER_BYTES or packet[0] >> 4 != 4:
            return
        device = self._devices.get(packet[DESTINATION])
        if device is not None:
            # A shorter delay overtakes nothing: packets arrive in the order in which they left.
            last = self._waiting[-1][0] if self._waiting else 0.0
            self._waiting.append((max(last, time.monotonic() + self._delay_s), device, packet))

    def _deliver(self) -> None:
        while self._waiting and self._waiting[0][0] <= time.monotonic():
            _, device, packet = self._waiting.popleft()
            with suppress(OSError):  # a device that is down takes nothing: the packet is lost, as on a cut cable
                os.write(device, packet)


def main(device: str, *places: str) -> None:
    devices = {}
    with Path("/proc/self/ns/net").open("rb") as home:
        for place in places:
            address, _, path = place.partition("=")
            with Path(path).open("rb") as namespace:
                enter(namespace)
            devices[socket.inet_aton(address)] = open_tun(device)
        enter(home)  # else it would count as a process of the last node, and end with it
    print("ready", flush=True)
    Relay(devices).run(sys.stdin.fileno())


if __name__ == "__main__":
    main(*sys.argv[1:])
