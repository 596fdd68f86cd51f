//! Volumes on several backends: what an image promises, checked against plain bytes.

#![allow(clippy::unwrap_used, reason = "a test that fails")]

mod crash;
mod export;
mod fencing;
mod hooked;
mod lacking;
mod model;
mod races;
mod rules;
mod support;
