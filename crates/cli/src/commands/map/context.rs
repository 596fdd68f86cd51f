//! What the actions of `esker map` share: the storage, and how tables and columns are named on the command line.

use std::sync::Arc;

use esker::map::{MapStorage, Order, Table, TableName};
use serde_json::Value;

use crate::commands::{builder, tell};
use crate::config::Settings;
use crate::exit::{Code, Failure};

/// What the actions share: the storage, and how results are told.
pub(super) struct Context {
    pub(super) map: Arc<dyn MapStorage>,
    /// The store; none where the map is a server's.
    pub(super) store: Option<esker::Store>,
    pub(super) json: bool,
}

impl Context {
    pub(super) fn open(settings: &Settings, location: &str, makes: bool, json: bool) -> Result<Self, Failure> {
        if let Some(map) = builder(settings).map_of_server(location)? {
            return Ok(Self { map: Arc::new(map), store: None, json });
        }
        let store = builder(settings).create(makes).open(location)?;
        Ok(Self { map: Arc::new(store.map()?), store: Some(store), json })
    }

    /// Prints `value` as JSON, or else `text`.
    pub(super) fn tell(&self, value: &Value, text: &str) -> Result<(), Failure> {
        tell(self.json, value, text)
    }

    pub(super) fn table(&self, name: &Name) -> Result<Arc<Table>, Failure> {
        Ok(self.map.table(&name.0)?)
    }
}

/// A table as it is written: namespace, dot, table.
#[derive(Clone, Debug)]
pub struct Name(pub(super) TableName);

impl std::str::FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('.') {
            Some((namespace, table)) if !namespace.is_empty() && !table.is_empty() => {
                Ok(Self(TableName::new(namespace, table)))
            }
            _ => Err(format!("{text:?}: expected NAMESPACE.TABLE")),
        }
    }
}

/// `COLUMN`, `COLUMN:asc` or `COLUMN:desc`.
#[derive(Clone, Debug)]
pub(super) struct Ordered {
    pub(super) name: String,
    pub(super) order: Order,
}

impl std::str::FromStr for Ordered {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, order) = match text.rsplit_once(':') {
            Some((name, "asc")) => (name, Order::Asc),
            Some((name, "desc")) => (name, Order::Desc),
            Some((_, other)) => return Err(format!("{text:?}: {other:?} is no order, expected asc or desc")),
            None => (text, Order::Asc),
        };
        Ok(Self { name: name.into(), order })
    }
}

/// What is said where there is no row.
pub(super) fn no_row(name: &Name) -> Failure {
    Failure::new(Code::NotFound, format!("table {} has no such row", name.0))
}
