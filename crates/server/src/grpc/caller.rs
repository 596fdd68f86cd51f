//! Who calls: the user that a call's token, its client's certificate, or neither means; and what he may do.
//!
//! connection → names in the certificate, read once; call → [`Guard`] → [`User`] in the call's extensions → [`permit`]
//!
//! Invariants:
//! 1. A call of a client that is no user reaches no service but health.
//! 2. What a method does to a log or a table is looked at in the method, before anything is done.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use tonic::transport::server::TlsConnectInfo;
use tonic::{Request, Status};

use super::visitor::Standing;
use crate::front::audit;
use crate::front::certificates::names_in;
use crate::front::users::{Face, Role, User, Users};

/// Finds the user that calls a service, and refuses users that may not use it; a connection on which a user has called
/// is a known client's.
#[derive(Clone)]
pub(crate) struct Guard {
    users: Arc<Users>,
    service: Service,
}

/// What is guarded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    /// Every client is answered; one that is no user stays a stranger.
    Open,
    /// For all users.
    Users,
    /// For users of a face.
    Of(Face),
    /// For operators.
    Operators,
}

impl Guard {
    pub(crate) fn new(users: &Arc<Users>, service: Service) -> Self {
        Self { users: Arc::clone(users), service }
    }

    fn caller(&self, request: &Request<()>, standing: Option<&Standing>) -> Result<Arc<User>, Status> {
        let sent = request.metadata().get("authorization").map(|sent| sent.as_bytes());
        if let Some(token) = sent.and_then(|sent| sent.strip_prefix(b"Bearer "))
            && self.users.has_tokens()
        {
            return self.users.by_token(token).ok_or_else(|| {
                if let Some(standing) = standing {
                    audit::login_failed(standing.peer(), "");
                }
                Status::unauthenticated("no user has this token")
            });
        }
        let certificates =
            || request.extensions().get::<TlsConnectInfo<Arc<Standing>>>().and_then(TlsConnectInfo::peer_certs);
        let of = |standing: &Standing| {
            self.users
                .by_certificate(standing.names(|| certificates().as_deref().map_or_else(Vec::new, |all| first(all))))
        };
        let face = if let Service::Of(face) = self.service { face } else { Face::Log };
        let user = standing.and_then(of).or_else(|| self.users.nobody(face));
        user.ok_or_else(|| {
            Status::unauthenticated(
                "expected the token of a user, as `authorization: Bearer TOKEN`, or a client certificate that names one",
            )
        })
    }
}

fn first(certificates: &[CertificateDer<'static>]) -> Vec<String> {
    certificates.first().map(|certificate| names_in(certificate)).unwrap_or_default()
}

impl tonic::service::Interceptor for Guard {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let extensions = request.extensions();
        let encrypted = || extensions.get::<TlsConnectInfo<Arc<Standing>>>().map(TlsConnectInfo::get_ref);
        let standing = extensions.get::<Arc<Standing>>().or_else(encrypted).cloned();
        let user = match self.caller(&request, standing.as_deref()) {
            Ok(user) => user,
            Err(_) if self.service == Service::Open => return Ok(request),
            Err(refused) => return Err(refused),
        };
        let may = match self.service {
            Service::Open | Service::Users => true,
            Service::Of(face) => user.uses(face),
            Service::Operators => user.role() == Role::Operator,
        };
        if let Some(standing) = &standing {
            match standing.admit(user.name()) {
                // A health check is answered even while all places are taken.
                Err(told) if self.service != Service::Open => return Err(told.into()),
                _ => {}
            }
        }
        if !may {
            let what = if self.service == Service::Operators { "what is for operators" } else { "this service" };
            audit::denied(standing.as_ref().map_or("", |standing| standing.peer()), user.name(), what);
            return Err(Status::permission_denied(format!("user {} may not use {what}", user.name())));
        }
        request.extensions_mut().insert(user);
        Ok(request)
    }
}

/// Whether something is read or changed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// The user that calls. A call that came by no guard has no user.
pub(crate) fn caller<T>(request: &Request<T>) -> Result<Arc<User>, Status> {
    request.extensions().get::<Arc<User>>().cloned().ok_or_else(|| Status::unauthenticated("the call has no user"))
}

/// Refuses what the user of a call may not do to a log or a table.
pub(crate) fn permit<T>(request: &Request<T>, face: Face, name: &str, access: Access) -> Result<(), Status> {
    let encrypted = || request.extensions().get::<TlsConnectInfo<Arc<Standing>>>().map(TlsConnectInfo::get_ref);
    let standing = request.extensions().get::<Arc<Standing>>().or_else(encrypted);
    may(&*caller(request)?, standing.map_or("", |standing| standing.peer()), face, name, access)
}

/// Refuses what a user may not do.
pub(crate) fn may(user: &User, peer: &str, face: Face, name: &str, access: Access) -> Result<(), Status> {
    if user.may(face, name, access == Access::Write) {
        return Ok(());
    }
    let verb = if access == Access::Write { "change" } else { "read" };
    let thing = if face == Face::Log { "log" } else { "table" };
    audit::denied(peer, user.name(), &format!("{verb} {thing} {name}"));
    Err(Status::permission_denied(format!("user {} may not {verb} the {thing} {name}", user.name())))
}
