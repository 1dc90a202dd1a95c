"""S3 and stores that speak its language (``s3://``): botocore's addresses, credentials, signatures.

A request names the ``ETag`` of its object. A bucket's region is learnt from its first answer.

Not here: the connections (``remote.clients.connections``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit
from xml.etree import ElementTree

from autoloader.storage import faults
from autoloader.storage.clients.connections import Answer
from autoloader.storage.clients.web import WebClient, finding_credentials, pin_header
from autoloader.storage.identity import RemoteIdentity, of_entry
from autoloader.storage.limits import Meter

_REGION = "x-amz-bucket-region"
_AWS = (".amazonaws.com", ".amazonaws.com.cn")


class S3Client(WebClient):
    """See ``remote.clients.client.Client``.

    Args:
        scheme: "s3".
    """

    lists = True

    def __init__(self, scheme: str) -> None:
        if "AWS_EC2_METADATA_DISABLED" not in os.environ and not _on_amazon():
            # elsewhere each start would wait for a server
            os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
        from botocore.session import Session

        session = Session()
        own = session.get_config_variable("ca_bundle")
        super().__init__(scheme, certificates=str(own) if own else None)
        found = session.create_client("s3").meta
        self._endpoint = urlsplit(str(found.endpoint_url))
        self._region = found.region_name if found.region_name != "aws-global" else "us-east-1"
        self._regions: dict[str, str] = {}
        self._credentials: Any = session.get_credentials()

    def listing(self, directory: str, meter: Meter) -> dict[str, RemoteIdentity | None]:
        """See ``Client.listing``."""
        bucket, _, prefix = directory.partition("://")[2].rstrip("/").partition("/")
        prefix = f"{prefix}/" if prefix else ""
        asked = {"list-type": "2", "prefix": prefix, "delimiter": "/"}
        names: dict[str, RemoteIdentity | None] = {}
        while True:
            answer = self._signed("GET", f"s3://{bucket}", directory, query=asked, meter=meter)
            page = _Page(self._checked(answer, directory).body)
            for one in page.each("CommonPrefixes"):
                names[one["Prefix"][len(prefix) : -1]] = None
            for one in page.each("Contents"):
                if name := one["Key"][len(prefix) :]:
                    names[name] = of_entry({"size": int(one["Size"]), "ETag": one["ETag"]})
            meter.named(len(names))
            if not (token := page.word("NextContinuationToken")):
                return names
            asked["continuation-token"] = token

    def write(self, path: str, content: bytes, meter: Meter) -> None:
        """See ``Client.write``."""
        self._checked(self._signed("PUT", path, path, content=content, meter=meter), path)

    def _ask(
        self,
        method: str,
        path: str,
        of: RemoteIdentity | None = None,
        own: Mapping[str, str] | None = None,
        *,
        into: memoryview | None = None,
        meter: Meter,
    ) -> Answer:
        answer = self._signed(
            method,
            path,
            path,
            headers={**pin_header(of), **(own or {})},
            into=into,
            meter=meter,
        )
        return self._checked(answer, path, pinned=of is not None)

    def _signed(
        self,
        method: str,
        what: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
        into: memoryview | None = None,
        meter: Meter,
    ) -> Answer:
        """The answer of the region that the bucket lies in."""
        bucket, _, name = what.partition("://")[2].partition("/")
        while True:
            region = self._regions.get(bucket, self._region)
            address = self._place(bucket, region) + quote(name, safe="/-_.~")
            if query:
                address += "?" + urlencode(sorted(query.items()), quote_via=quote, safe="-_.~")
            signed = self._sign(method, address, dict(headers or {}), content, region, path)
            answer = self._connections.ask(
                method,
                address,
                signed,
                path,
                into=into,
                content=content,
                follows=False,
                meter=meter,
            )
            found = answer.headers.get(_REGION)
            if answer.status not in (301, 307, 400) or not found or found == region:
                return answer
            self._regions[bucket] = found

    def _place(self, bucket: str, region: str) -> str:
        """The address of a bucket in a region, with a slash at the end."""
        host = self._endpoint.netloc
        if not host.endswith(_AWS):
            return f"{self._endpoint.geturl().rstrip('/')}/{bucket}/"
        if bucket in self._regions:
            host = f"s3.{region}.amazonaws.com{'.cn' if host.endswith('.cn') else ''}"
        if "." in bucket:  # of which no certificate speaks
            return f"https://{host}/{bucket}/"
        return f"https://{bucket}.{host}/"

    def _sign(
        self,
        method: str,
        address: str,
        headers: dict[str, str],
        content: bytes | None,
        region: str,
        path: str,
    ) -> dict[str, str]:
        """The headers with a signature; without credentials, as they are."""
        headers["Accept-Encoding"] = "identity"
        if self._credentials is None:
            return headers
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest

        with finding_credentials(path):
            asked = AWSRequest(method, address, headers=headers, data=content or b"")
            S3SigV4Auth(self._credentials.get_frozen_credentials(), "s3", region).add_auth(asked)
        return {name: str(value) for name, value in asked.headers.items()}

    def _told(self, answer: Answer) -> RemoteIdentity:
        """As a listing tells it, which says nothing of seconds."""
        size = int(answer.headers["Content-Length"])
        return of_entry({"size": size, "ETag": answer.headers.get("ETag")})

    def _is_another(self, answer: Answer, of: RemoteIdentity) -> bool:
        tag = answer.headers.get("ETag")
        return bool(tag) and tag != of.tag

    def _checked(self, answer: Answer, path: str, *, pinned: bool = False) -> Answer:
        if answer.status in (301, 307):  # to no other region
            raise faults.of_status(404, path)
        return super()._checked(answer, path, pinned=pinned)


class _Page:
    """One page of a listing."""

    def __init__(self, text: bytes) -> None:
        self._root = ElementTree.fromstring(text)  # noqa: S314 of a store that the user trusts
        self._space = self._root.tag.partition("}")[0] + "}" if "}" in self._root.tag else ""

    def word(self, name: str) -> str:
        """The text of an element; "" where there is none."""
        return self._root.findtext(self._space + name) or ""

    def each(self, name: str) -> Iterator[dict[str, str]]:
        """The texts of each element of a name, by the names within."""
        for one in self._root.iter(self._space + name):
            yield {part.tag.rpartition("}")[2]: part.text or "" for part in one}


def _on_amazon() -> bool:
    """Whether this machine is one of Amazon's, whose metadata server is rightly asked."""
    with contextlib.suppress(OSError):
        return "Amazon" in Path("/sys/class/dmi/id/sys_vendor").read_text(encoding="utf-8")
    return False
