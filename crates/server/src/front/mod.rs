//! What all protocols have in common before a client is known: who may stay, and for how long.

pub(crate) mod strangers;
