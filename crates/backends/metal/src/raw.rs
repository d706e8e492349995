//! All calls of Metal and of Objective-C.
//!
//! Temporary objects of Metal live in an autorelease pool, which [`pooled`] opens and empties, because threads of Rust
//! have none.

mod blocks;
mod buffer;
mod commands;
mod device;
mod drop_pooled;
mod image;
mod pages;
mod texture;

pub(crate) use blocks::{EndBlock, EventBlock, Failure, ReleaseBlock};
pub(crate) use buffer::{Mode, Raw};
pub(crate) use commands::{Blit, Commands, Queue};
pub(crate) use device::{Device, Event, Facts, Listener, all_devices, facts};
pub(crate) use drop_pooled::DropPooled;
pub(crate) use image::Image;
pub(crate) use objc2::rc::autoreleasepool as pooled;
pub(crate) use pages::page_bytes;
pub(crate) use texture::Bounce;
