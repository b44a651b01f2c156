"""Credentials that tools need, and logins of their users. ADK's `google.adk.auth`."""

from typing import TYPE_CHECKING

from waystation.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from waystation.auth.auth_credential import AuthCredential as AuthCredential
    from waystation.auth.auth_credential import AuthCredentialTypes as AuthCredentialTypes
    from waystation.auth.auth_credential import HttpAuth as HttpAuth
    from waystation.auth.auth_credential import HttpCredentials as HttpCredentials
    from waystation.auth.auth_credential import OAuth2Auth as OAuth2Auth
    from waystation.auth.auth_credential import ServiceAccount as ServiceAccount
    from waystation.auth.auth_credential import ServiceAccountCredential as ServiceAccountCredential
    from waystation.auth.auth_schemes import APIKey as APIKey
    from waystation.auth.auth_schemes import APIKeyIn as APIKeyIn
    from waystation.auth.auth_schemes import AuthScheme as AuthScheme
    from waystation.auth.auth_schemes import AuthSchemeType as AuthSchemeType
    from waystation.auth.auth_schemes import CustomAuthScheme as CustomAuthScheme
    from waystation.auth.auth_schemes import ExtendedOAuth2 as ExtendedOAuth2
    from waystation.auth.auth_schemes import HTTPBase as HTTPBase
    from waystation.auth.auth_schemes import HTTPBearer as HTTPBearer
    from waystation.auth.auth_schemes import OAuth2 as OAuth2
    from waystation.auth.auth_schemes import OAuthFlowAuthorizationCode as OAuthFlowAuthorizationCode
    from waystation.auth.auth_schemes import OAuthFlowClientCredentials as OAuthFlowClientCredentials
    from waystation.auth.auth_schemes import OAuthFlowImplicit as OAuthFlowImplicit
    from waystation.auth.auth_schemes import OAuthFlowPassword as OAuthFlowPassword
    from waystation.auth.auth_schemes import OAuthFlows as OAuthFlows
    from waystation.auth.auth_schemes import OAuthGrantType as OAuthGrantType
    from waystation.auth.auth_schemes import OpenIdConnect as OpenIdConnect
    from waystation.auth.auth_schemes import OpenIdConnectWithConfig as OpenIdConnectWithConfig
    from waystation.auth.auth_schemes import SecurityScheme as SecurityScheme
    from waystation.auth.auth_schemes import SecuritySchemeType as SecuritySchemeType
    from waystation.auth.auth_tool import AuthConfig as AuthConfig
    from waystation.auth.credential_bucket import Bucket as Bucket
    from waystation.auth.credential_manager import CredentialManager as CredentialManager
    from waystation.auth.credential_service import EncryptedFileCredentialService as EncryptedFileCredentialService
    from waystation.auth.credential_service import InMemoryCredentialService as InMemoryCredentialService
    from waystation.auth.credential_service import KeyringCredentialService as KeyringCredentialService
    from waystation.auth.credential_service import store_at as store_at
    from waystation.auth.credential_service.base_credential_service import (
        BaseCredentialService as BaseCredentialService,
    )
    from waystation.auth.credential_store import CredentialStore as CredentialStore
    from waystation.auth.credential_store import Place as Place
    from waystation.auth.login import Authorized as Authorized
    from waystation.auth.login import WaitingCall as WaitingCall
    from waystation.auth.login import complete_authorization as complete_authorization
    from waystation.auth.login import provide_credential as provide_credential

__all__ = [
    "APIKey",
    "APIKeyIn",
    "AuthConfig",
    "AuthCredential",
    "AuthCredentialTypes",
    "AuthScheme",
    "AuthSchemeType",
    "Authorized",
    "BaseCredentialService",
    "Bucket",
    "CredentialManager",
    "CredentialStore",
    "CustomAuthScheme",
    "EncryptedFileCredentialService",
    "ExtendedOAuth2",
    "HTTPBase",
    "HTTPBearer",
    "HttpAuth",
    "HttpCredentials",
    "InMemoryCredentialService",
    "KeyringCredentialService",
    "OAuth2",
    "OAuth2Auth",
    "OAuthFlowAuthorizationCode",
    "OAuthFlowClientCredentials",
    "OAuthFlowImplicit",
    "OAuthFlowPassword",
    "OAuthFlows",
    "OAuthGrantType",
    "OpenIdConnect",
    "OpenIdConnectWithConfig",
    "Place",
    "SecurityScheme",
    "SecuritySchemeType",
    "ServiceAccount",
    "ServiceAccountCredential",
    "WaitingCall",
    "complete_authorization",
    "provide_credential",
    "store_at",
]

_EXPORTS = {
    "waystation.auth.auth_credential": (
        "AuthCredential AuthCredentialTypes HttpAuth HttpCredentials OAuth2Auth ServiceAccount ServiceAccountCredential"
    ),
    "waystation.auth.auth_schemes": (
        "APIKey APIKeyIn AuthScheme AuthSchemeType CustomAuthScheme ExtendedOAuth2 HTTPBase HTTPBearer "
        "OAuth2 OAuthFlowAuthorizationCode OAuthFlowClientCredentials OAuthFlowImplicit "
        "OAuthFlowPassword OAuthFlows OAuthGrantType OpenIdConnect OpenIdConnectWithConfig "
        "SecurityScheme SecuritySchemeType"
    ),
    "waystation.auth.auth_tool": "AuthConfig",
    "waystation.auth.credential_manager": "CredentialManager",
    "waystation.auth.credential_service": (
        "EncryptedFileCredentialService InMemoryCredentialService KeyringCredentialService store_at"
    ),
    "waystation.auth.credential_service.base_credential_service": "BaseCredentialService",
    "waystation.auth.credential_bucket": "Bucket",
    "waystation.auth.credential_store": "CredentialStore Place",
    "waystation.auth.login": "Authorized WaitingCall complete_authorization provide_credential",
}

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
