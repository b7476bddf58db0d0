#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy that is bad for its clients: toxic_proxy.py LISTEN_PORT TARGET_PORT MODE [NUMBER]

  pass          forwards
  black-hole    takes connections and never answers
  delay MS      answers come so much later
  drop-after N  closes the connection after N bytes of answers
  hang-up N     reads N bytes of what is asked and closes, first its own side: what is written then raises SIGPIPE
  garbage       answers by random bytes
  drip          forwards one byte of the answers every 20 ms
"""
import os
import socket
import sys
import threading
import time


def forward(source, target):
    """Until either side closes."""
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def answer(client, server, mode, number):
    sent = 0
    while data := server.recv(65536):
        if mode == "delay":
            time.sleep(number / 1000)
        if mode == "drop-after":
            data = data[: number - sent]
        if mode == "drip":
            for byte in data:
                client.sendall(bytes([byte]))
                time.sleep(0.02)
        else:
            client.sendall(data)
        sent += len(data)
        if mode == "drop-after" and sent >= number:
            break


def serve(client, port, mode, number):
    with client:
        try:
            if mode == "black-hole":
                time.sleep(3600)
            if mode == "hang-up":
                client.recv(number)
                client.shutdown(socket.SHUT_WR)
                return
            if mode == "garbage":
                while client.recv(65536):
                    client.sendall(os.urandom(3000))
                return
            with socket.create_connection(("127.0.0.1", port)) as server:
                threading.Thread(target=forward, args=(client, server), daemon=True).start()
                answer(client, server, mode, number)
                client.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def main():
    listen, target, mode = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    number = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    with socket.create_server(("127.0.0.1", listen)) as listener:
        while True:
            client, _ = listener.accept()
            threading.Thread(target=serve, args=(client, target, mode, number), daemon=True).start()


main()
