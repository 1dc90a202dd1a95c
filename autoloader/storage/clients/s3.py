"""S3 and stores that speak its language (``s3://``): botocore's addresses, credentials, signatures.

A request names the ``ETag`` of its object. A bucket's region is learnt from its first answer.

Not here: the connections (``storage.clients.web``).
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit
from xml.etree import ElementTree

from autoloader.storage import faults
from autoloader.storage.clients import web
from autoloader.storage.clients.client import RemoteIdentity, of_entry
from autoloader.storage.faults import Meter

_REGION = "x-amz-bucket-region"
_AWS = (".amazonaws.com", ".amazonaws.com.cn")


class S3Client(web.WebClient):
    """S3 and its like; see ``storage.clients.client.Client``."""

    lists = True

    def __init__(self) -> None:
        if "AWS_EC2_METADATA_DISABLED" not in os.environ and not _on_amazon():
            # elsewhere each start would wait for a server
            os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
        from botocore.session import Session

        session = Session()
        own = session.get_config_variable("ca_bundle")
        super().__init__(str(own) if own else None)
        found = session.create_client("s3").meta
        self._endpoint = urlsplit(str(found.endpoint_url))
        self._region = found.region_name if found.region_name != "aws-global" else "us-east-1"
        self._regions: dict[str, str] = {}
        self._credentials: Any = session.get_credentials()

    def listing(self, directory: str, meter: Meter) -> dict[str, RemoteIdentity | None]:
        """Names in a directory: files with their versions, directories with ``None``."""
        bucket, _, prefix = directory.partition("://")[2].rstrip("/").partition("/")
        prefix = f"{prefix}/" if prefix else ""
        asked = {"list-type": "2", "prefix": prefix, "delimiter": "/"}
        address = f"s3://{bucket}/"
        names: dict[str, RemoteIdentity | None] = {}
        while True:
            query = urlencode(sorted(asked.items()), quote_via=quote, safe="-_.~")
            answer = self._answered(web.Request("GET", f"{address}?{query}", directory, meter))
            page = ElementTree.fromstring(answer.body)  # noqa: S314 of a store that the user trusts
            for one in page.iterfind("{*}CommonPrefixes"):
                names[_word(one, "Prefix")[len(prefix) : -1]] = None
            for one in page.iterfind("{*}Contents"):
                if name := _word(one, "Key")[len(prefix) :]:
                    entry = {"size": int(_word(one, "Size")), "ETag": _word(one, "ETag")}
                    names[name] = of_entry(entry)
            meter.named(len(names))
            if not (token := page.findtext("{*}NextContinuationToken")):
                return names
            asked["continuation-token"] = token

    def write(self, path: str, content: bytes, meter: Meter) -> None:
        """Write a small file."""
        address, _ = self._address(path, None)
        self._answered(web.Request("PUT", address, path, meter, content=content))

    def _address(self, path: str, of: RemoteIdentity | None) -> tuple[str, dict[str, str]]:
        bucket, _, name = path.partition("://")[2].partition("/")
        return f"s3://{bucket}/{quote(name, safe='/-_.~')}", web.pin_header(of)

    def _send(self, request: web.Request) -> web.Answer:
        """The answer of the region that the bucket lies in."""
        bucket, _, inside = request.address.partition("://")[2].partition("/")
        while True:
            region = self._regions.get(bucket, self._region)
            there = replace(request, address=self._place(bucket, region) + inside)
            answer = self._connections.ask(self._signed(there, region), follows=False)
            found = answer.headers.get(_REGION)
            if answer.status in (301, 307, 400) and found and found != region:
                self._regions[bucket] = found
            elif answer.status in (301, 307):
                raise faults.missing(request.path)
            else:
                return answer

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

    def _signed(self, request: web.Request, region: str) -> web.Request:
        """The request with a signature; as it is, without credentials."""
        if self._credentials is None:
            return request
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest

        with web.finding_credentials(request.path):
            asked = AWSRequest(
                request.method,
                request.address,
                headers=dict(request.headers),
                data=request.content or b"",
            )
            S3SigV4Auth(self._credentials.get_frozen_credentials(), "s3", region).add_auth(asked)
        return replace(request, headers={name: str(one) for name, one in asked.headers.items()})

    def _told(self, answer: web.Answer) -> RemoteIdentity:
        """The version as a listing tells it, without a time."""
        size = int(answer.headers["Content-Length"])
        return of_entry({"size": size, "ETag": answer.headers.get("ETag")})

    def _is_another(self, answer: web.Answer, of: RemoteIdentity) -> bool:
        tag = answer.headers.get("ETag")
        return bool(tag) and tag != of.tag


def _word(element: ElementTree.Element, name: str) -> str:
    """Text of an element within another. Raises LookupError where there is none."""
    found = element.findtext(f"{{*}}{name}")
    if found is None:
        raise LookupError(name)
    return found


def _on_amazon() -> bool:
    """True if this machine is one of Amazon's, which have a metadata server."""
    with contextlib.suppress(OSError):
        return "Amazon" in Path("/sys/class/dmi/id/sys_vendor").read_text(encoding="utf-8")
    return False
