"""Credentials that tools need, and logins of their users. ADK's `google.adk.auth`."""

from typing import TYPE_CHECKING

from waystation.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from waystation.auth.auth_credential import (
        AuthCredential,
        AuthCredentialTypes,
        HttpAuth,
        HttpCredentials,
        OAuth2Auth,
        ServiceAccount,
        ServiceAccountCredential,
    )
    from waystation.auth.auth_schemes import (
        APIKey,
        APIKeyIn,
        AuthScheme,
        AuthSchemeType,
        CustomAuthScheme,
        ExtendedOAuth2,
        HTTPBase,
        HTTPBearer,
        OAuth2,
        OAuthFlowAuthorizationCode,
        OAuthFlowClientCredentials,
        OAuthFlowImplicit,
        OAuthFlowPassword,
        OAuthFlows,
        OAuthGrantType,
        OpenIdConnect,
        OpenIdConnectWithConfig,
        SecurityScheme,
        SecuritySchemeType,
    )
    from waystation.auth.auth_tool import AuthConfig
    from waystation.auth.credential_manager import CredentialManager
    from waystation.auth.credential_service.base_credential_service import BaseCredentialService
    from waystation.auth.credential_service.encrypted_file_credential_service import EncryptedFileCredentialService
    from waystation.auth.credential_service.in_memory_credential_service import InMemoryCredentialService
    from waystation.auth.credential_service.keyring_credential_service import KeyringCredentialService
    from waystation.auth.credential_service.store_location import store_at
    from waystation.auth.credential_store import (
        Authorized,
        Bucket,
        CredentialStore,
        Place,
        WaitingCall,
        complete_authorization,
        provide_credential,
    )

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
    "waystation.auth.credential_service.base_credential_service": "BaseCredentialService",
    "waystation.auth.credential_service.encrypted_file_credential_service": "EncryptedFileCredentialService",
    "waystation.auth.credential_service.in_memory_credential_service": "InMemoryCredentialService",
    "waystation.auth.credential_service.keyring_credential_service": "KeyringCredentialService",
    "waystation.auth.credential_service.store_location": "store_at",
    "waystation.auth.credential_store": (
        "Authorized Bucket CredentialStore Place WaitingCall complete_authorization provide_credential"
    ),
}

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
