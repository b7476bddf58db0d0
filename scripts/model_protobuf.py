# SPDX-License-Identifier: Apache-2.0
"""Reads protobuf messages without their schema: the wire format, as far as ONNX uses it.

A message is a sequence of fields. Each begins with a varint (seven bits a byte, the lowest first, the top bit set in all
but the last) of `number << 3 | wire type`, and goes on with
    wire type 0   a varint                      integers, enums
    wire type 1   eight bytes                   doubles
    wire type 2   a varint and so many bytes    messages, strings, bytes, and packed lists of numbers
    wire type 5   four bytes                    floats
The groups of old (types 3 and 4) are refused. Which number means what is the business of model_onnx.py.
"""
import collections
import struct

from model_layers import BadModel

DEEPEST = 100  # protobuf's own bound on messages within messages


def read_varint(data, at):
    """The number that begins at `at`, and where the next thing begins."""
    value = 0
    for index in range(10):
        if at + index >= len(data):
            raise BadModel("a number is cut short")
        byte = data[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value & (2 ** 64 - 1), at + index + 1
    raise BadModel("a number has more than ten bytes")


def signed(value):
    return value - 2 ** 64 if value >= 2 ** 63 else value


def read_field(data, at):
    """Number and value of the field that begins at `at`, and where the next begins."""
    key, at = read_varint(data, at)
    number, kind = key >> 3, key & 7
    if kind == 0:
        value, at = read_varint(data, at)
        return number, signed(value), at
    if kind not in (1, 2, 5):
        raise BadModel("wire type {} is not one of ONNX".format(kind))
    length, at = read_varint(data, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
    if length > len(data) - at:
        raise BadModel("a field of {} bytes where {} are left".format(length, len(data) - at))
    return number, data[at:at + length], at + length


class Message:
    """The fields of one message, by number. `data` is a memoryview, and so are the fields that are not varints."""

    def __init__(self, data, depth=0):
        if depth > DEEPEST:
            raise BadModel("messages within messages, more than {} deep".format(DEEPEST))
        self.depth = depth
        self.fields = collections.defaultdict(list)
        at = 0
        while at < len(data):
            number, value, at = read_field(data, at)
            self.fields[number].append(value)

    def bytes(self, number):
        values = self.fields.get(number, [])
        if any(isinstance(value, int) for value in values):
            raise BadModel("field {} is a number where bytes belong".format(number))
        return values

    def messages(self, number):
        return [Message(data, self.depth + 1) for data in self.bytes(number)]

    def strings(self, number):
        return [str(data, "utf-8", "replace") for data in self.bytes(number)]

    def string(self, number):
        return (self.strings(number) or [""])[-1]

    def integers(self, number):
        """All of a repeated field, packed or not."""
        result = []
        for value in self.fields.get(number, []):
            if isinstance(value, int):
                result.append(value)
                continue
            at = 0
            while at < len(value):
                packed, at = read_varint(value, at)
                result.append(signed(packed))
        return result

    def integer(self, number, default=0):
        return (self.integers(number) or [default])[-1]

    def float(self, number):
        data = (self.bytes(number) or [b"\0\0\0\0"])[-1]
        if len(data) != 4:
            raise BadModel("field {} is not a float".format(number))
        return struct.unpack("<f", data)[0]
