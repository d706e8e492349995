//! As much of an Objective-C runtime as clients of Metal need: selectors, classes, counted objects, pools, blocks.
//!
//! The `extern` functions here are those that objc2 and block2 need with their feature `gnustep-1-7`. A client that
//! needs another one does not link, and the linker names it.

#[macro_use]
mod method;

mod block;
mod class;
mod message;
mod object;
mod pool;
mod selector;

pub(crate) use self::block::{Block, BlockArgument, alive as blocks_alive};
pub(crate) use self::class::Class;
pub(crate) use self::method::{Coded, Method};
pub(crate) use self::object::{ClassReceiver, Header, Id, Instance, New, Receiver, Ref};
pub(crate) use self::pool::Pool;
pub(crate) use self::selector::Selector;

/// `BOOL` as objc2 knows it on GNUstep.
pub(crate) type Bool = u8;
