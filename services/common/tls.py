"""TLS as every dartspec process has it: what it shows to those who call it, and whom it believes when it calls.

Unix sockets never use it: they do not leave the machine.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from dartspec.services.common.errors import InvalidArgument

# For clients on the command line, next to DARTSPEC_API_KEY.
VARIABLES = ("DARTSPEC_TLS_CA", "DARTSPEC_TLS_CERT", "DARTSPEC_TLS_KEY")
PEER_SETTINGS = ("--peer-ca", "--peer-cert", "--peer-key")


@dataclass(frozen=True)
class ServerTls:
    """PEM files of a server: its certificate with what leads to its authority, its key, and the authorities of clients.

    Without client_ca clients show no certificate; with it each must.
    """

    cert: str
    key: str
    client_ca: str = ""

    @classmethod
    def chosen(cls, cert: str, key: str, client_ca: str) -> ServerTls | None:
        """As set by --tls-cert, --tls-key and --tls-client-ca; None without a certificate.

        Raises InvalidArgument for files that cannot be read, do not belong together or are missing.
        """
        if not cert and not key and not client_ca:
            return None
        if not cert or not key:
            raise InvalidArgument("--tls-cert", "goes with --tls-key, and --tls-client-ca with both")
        tls = cls(cert, key, client_ca)
        tls.context()
        return tls

    def context(self) -> ssl.SSLContext:
        """For servers that use Python's ssl."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        _load_chain(context, "--tls-cert", self.cert, self.key)
        if self.client_ca:
            _load_authorities(context, "--tls-client-ca", self.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def credentials(self) -> grpc.ServerCredentials:
        """For gRPC servers."""
        return grpc.ssl_server_credentials(
            [(Path(self.key).read_bytes(), Path(self.cert).read_bytes())],
            root_certificates=Path(self.client_ca).read_bytes() if self.client_ca else None,
            require_client_auth=bool(self.client_ca),
        )


@dataclass(frozen=True)
class ClientTls:
    """PEM files of a client: the authorities that it believes, and, where servers want one, its certificate and key."""

    ca: str
    cert: str = ""
    key: str = ""

    @classmethod
    def chosen(cls, ca: str, cert: str, key: str, names: tuple[str, str, str] = PEER_SETTINGS) -> ClientTls | None:
        """As set by --peer-ca, --peer-cert and --peer-key; None without authorities: then there is no TLS.

        Raises InvalidArgument for files that cannot be read, do not belong together or are missing.
        """
        if not ca and not cert and not key:
            return None
        ca_name, cert_name, key_name = names
        if not ca or bool(cert) != bool(key):
            raise InvalidArgument(ca_name, f"is needed, and {cert_name} with {key_name} or neither")
        context = ssl.create_default_context()
        _load_authorities(context, ca_name, ca)
        if cert:
            _load_chain(context, cert_name, cert, key)
        return cls(ca, cert, key)

    @classmethod
    def of_environment(cls) -> ClientTls | None:
        """As the variables of the command line say."""
        ca, cert, key = (os.environ.get(name, "") for name in VARIABLES)
        return cls.chosen(ca, cert, key, VARIABLES)

    def context(self) -> ssl.SSLContext:
        """For clients that use Python's ssl."""
        context = ssl.create_default_context(cafile=self.ca)
        if self.cert:
            _load_chain(context, "the client's certificate", self.cert, self.key)
        return context

    def credentials(self) -> grpc.ChannelCredentials:
        """For gRPC channels."""
        return grpc.ssl_channel_credentials(
            root_certificates=Path(self.ca).read_bytes(),
            private_key=Path(self.key).read_bytes() if self.key else None,
            certificate_chain=Path(self.cert).read_bytes() if self.cert else None,
        )


def _load_chain(context: ssl.SSLContext, setting: str, cert: str, key: str) -> None:
    """gRPC says of a wrong file only that it cannot listen; this says which one it is."""
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise InvalidArgument(setting, f"cannot use the certificate {cert} with the key {key}: {error}") from error


def _load_authorities(context: ssl.SSLContext, setting: str, path: str) -> None:
    try:
        context.load_verify_locations(path)
    except OSError as error:
        raise InvalidArgument(setting, f"cannot use {path}: {error}") from error


def _no_password() -> str:
    raise ValueError("the key has a password; remove it with 'openssl pkey'")
