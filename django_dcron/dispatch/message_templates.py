"""Templates of encoded messages: messages of one kind differ in four texts only.

Building and encoding a message takes four times as long as filling in a template.

Invariants:

- A template returns what ``encode`` returns, byte for byte. It is made from an encoded message, and
  compared with another one before it is used.
- ``encode`` encodes each message for which there is no template.
"""

from __future__ import annotations

import json
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Hashable
from dataclasses import replace
from json.encoder import encode_basestring_ascii
from uuid import UUID

from django_dcron.dispatch.base import DueRun

MAX_TEMPLATES = 1000

Encode = Callable[[DueRun, str], bytes]
"""Returns the run's encoded message with this delivery tag."""


class MessageTemplate:
    """The JSON text of a message without the run's id, its job's name, the body and the tag."""

    _RUN_ID = UUID("5e0f7c2a-91d4-4b86-a3e8-c6d2b7f10943")
    _JOB_NAME = "5e0f7c2a91d44b86-job"
    _TAG = "5e0f7c2a91d44b86-tag"
    """The texts to replace. They occur nowhere else."""
    _OTHER_RUN_ID = UUID("c3a9e6d1-07b5-4f28-9c4e-12f8a05b6d7e")
    _OTHER_JOB_NAME = "100 % „täglich“ 每日 😀 \\ \" ' %(id)s\n"
    _OTHER_TAG = "1b8e4d7c20f5963a-tag"
    """A second message, to compare with. Its job name has characters that JSON escapes."""

    def __init__(self, text: str) -> None:
        """Make the template from the message of a run with ``_RUN_ID`` and ``_JOB_NAME``."""
        body = json.loads(text)["body"]
        run_id = str(self._RUN_ID)
        self._before, _, self._after = a2b_base64(body).partition(run_id.encode())
        self._text = (
            text.replace("%", "%%")
            .replace(json.dumps(body), '"%(body)s"')
            .replace(json.dumps(self._JOB_NAME), "%(job_name)s")
            .replace(run_id, "%(id)s")
            .replace(self._TAG, "%(tag)s")
        )

    @classmethod
    def of(cls, run: DueRun, encode: Encode) -> MessageTemplate | None:
        """Return a template for messages like that of ``run``, or None if there can't be one."""
        sample = replace(run, run_id=cls._RUN_ID, job_name=cls._JOB_NAME)
        other = replace(run, run_id=cls._OTHER_RUN_ID, job_name=cls._OTHER_JOB_NAME)
        template = cls(encode(sample, cls._TAG).decode())
        expected = encode(other, cls._OTHER_TAG)
        return template if template.encode(other, cls._OTHER_TAG) == expected else None

    def encode(self, run: DueRun, tag: str) -> bytes:
        run_id = str(run.run_id)
        body = b2a_base64(self._before + run_id.encode() + self._after, newline=False).decode()
        job_name = encode_basestring_ascii(run.job_name)
        values = {"body": body, "id": run_id, "job_name": job_name, "tag": tag}
        return (self._text % values).encode()


class MessageTemplates:
    def __init__(self) -> None:
        self._templates: dict[Hashable, MessageTemplate | None] = {}

    def encode(self, kind: Hashable, run: DueRun, tag: str, encode: Encode) -> bytes:
        """Return the run's encoded message.

        ``kind``: a key of all messages that differ only in run, job name and delivery tag.
        """
        if kind not in self._templates:
            if len(self._templates) >= MAX_TEMPLATES:
                return encode(run, tag)
            self._templates[kind] = MessageTemplate.of(run, encode)
        template = self._templates[kind]
        return encode(run, tag) if template is None else template.encode(run, tag)

    def clear(self) -> None:
        self._templates.clear()
