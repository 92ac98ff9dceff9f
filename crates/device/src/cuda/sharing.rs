//! Memory on a card that other processes allocated and share by a handle of the driver (CUDA IPC).
//!
//! Each card has a thread that opens and closes such memory, because these calls may block. The thread also copies
//! between this memory and the host, through pinned memory. Kernels access it in place.

use std::{
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, unbounded};

use super::driver::{Address, Context, IMPORT_HANDLE_BYTES, Imported, Mapped, Stream};
use crate::DeviceError;

/// Bytes of the thread's pinned memory: the maximum of one copy.
const STEP_BYTES: usize = 1 << 20;

/// How long an order may take before the card counts as unresponsive.
const PATIENCE: Duration = Duration::from_secs(10);

/// Access to other processes' memory on one card.
pub struct Sharing {
    card: u16,
    orders: Sender<Order>,
    /// Number of orders with a reply that the thread has not completed.
    outstanding: Arc<AtomicUsize>,
    /// Whether the last order that was waited for was not completed in time.
    is_late: AtomicBool,
}

/// Orders to a card's thread.
enum Order {
    Open { handle: [u8; IMPORT_HANDLE_BYTES], reply: Reply<(Address, usize)> },
    Read { from: Address, bytes: usize, into: Vec<u8>, reply: Reply<Vec<u8>> },
    Write { data: Bytes, to: Address, reply: Reply<()> },
    Close(Address),
}

type Reply<T> = Sender<Result<T, DeviceError>>;

impl Sharing {
    /// Starts a card's thread.
    ///
    /// # Errors
    /// If the card cannot be used, or the thread cannot be started.
    pub fn start(card: u16) -> Result<Arc<Self>, DeviceError> {
        let (orders, taken) = unbounded();
        let (opening, opened) = crossbeam_channel::bounded(1);
        let outstanding = Arc::new(AtomicUsize::new(0));
        let carried_out = Arc::clone(&outstanding);
        let cannot_start = |error: io::Error| DeviceError::Driver(format!("a thread cannot be started: {error}"));
        thread::Builder::new()
            .name(format!("cuda-shared-{card}"))
            .spawn(move || match Copier::open(card) {
                Ok(copier) => {
                    let _ = opening.send(Ok(()));
                    copier.serve(&taken, &carried_out);
                }
                Err(error) => _ = opening.send(Err(error)),
            })
            .map_err(cannot_start)?;
        opened.recv().unwrap_or(Err(DeviceError::Stopped))?;
        Ok(Arc::new(Self { card, orders, outstanding, is_late: AtomicBool::new(false) }))
    }

    /// Opens the memory of a handle, which the owning process obtained from its driver.
    ///
    /// # Errors
    /// If the driver rejects the handle, or the card is lost.
    pub fn open(self: &Arc<Self>, handle: [u8; IMPORT_HANDLE_BYTES]) -> Result<ImportedMemory, DeviceError> {
        let (address, bytes) = self.ask(|reply| Order::Open { handle, reply })?;
        Ok(ImportedMemory { sharing: Arc::clone(self), address, bytes })
    }

    /// Sends an order to the thread and waits for the reply. While a late order is outstanding, further orders fail at
    /// once, so that only one caller waits for an unresponsive card.
    fn ask<T>(&self, order: impl FnOnce(Reply<T>) -> Order) -> Result<T, DeviceError> {
        let late = || DeviceError::Lost(format!("card {} does not answer", self.card));
        let (reply, answer) = crossbeam_channel::bounded(1);
        if self.is_late.load(Ordering::Acquire) && self.outstanding.load(Ordering::Acquire) > 0 {
            return Err(late());
        }
        self.outstanding.fetch_add(1, Ordering::AcqRel);
        self.orders.send(order(reply)).map_err(|_| DeviceError::Stopped)?;
        let answered = answer.recv_timeout(PATIENCE);
        self.is_late.store(answered.is_err(), Ordering::Release);
        answered.map_err(|_| late())?
    }
}

impl fmt::Debug for Sharing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Sharing").field("card", &self.card).finish_non_exhaustive()
    }
}

/// Memory of another process, closed on drop.
#[derive(Debug)]
pub struct ImportedMemory {
    sharing: Arc<Sharing>,
    address: Address,
    bytes: usize,
}

impl ImportedMemory {
    /// Returns its size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Appends `bytes` bytes at `offset` to `into`, which should have the capacity.
    ///
    /// # Errors
    /// If the range exceeds the memory, or the card is lost.
    pub fn read(&self, offset: usize, bytes: usize, into: Vec<u8>) -> Result<Vec<u8>, DeviceError> {
        let from = self.at(offset, bytes)?;
        self.sharing.ask(|reply| Order::Read { from, bytes, into, reply })
    }

    /// Writes `data` at `offset`.
    ///
    /// # Errors
    /// If the range exceeds the memory, or the card is lost.
    pub fn write(&self, offset: usize, data: Bytes) -> Result<(), DeviceError> {
        let to = self.at(offset, data.len())?;
        self.sharing.ask(|reply| Order::Write { data, to, reply })
    }

    fn at(&self, offset: usize, bytes: usize) -> Result<Address, DeviceError> {
        let is_within = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        let refused = || DeviceError::Driver(format!("{bytes} bytes at {offset} of memory of {} bytes", self.bytes));
        if is_within { Ok(self.address.offset(offset)) } else { Err(refused()) }
    }
}

/// A range of such memory. It keeps the memory open.
#[derive(Clone, Debug)]
pub struct ImportedSlice {
    memory: Arc<ImportedMemory>,
    offset: usize,
    bytes: usize,
}

impl ImportedSlice {
    /// Returns `bytes` bytes of `memory` at `offset`; `None` if they exceed it.
    pub fn new(memory: &Arc<ImportedMemory>, offset: usize, bytes: usize) -> Option<Self> {
        memory.at(offset, bytes).ok()?;
        Some(Self { memory: Arc::clone(memory), offset, bytes })
    }

    /// Returns the address of its first byte.
    pub fn address(&self) -> Address {
        self.memory.address.offset(self.offset)
    }

    /// Returns its size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns its first `bytes` bytes; `None` if it has fewer.
    #[must_use]
    pub fn first(&self, bytes: usize) -> Option<Self> {
        (bytes <= self.bytes).then(|| Self { bytes, ..self.clone() })
    }

    /// Returns whether it shares bytes with another slice.
    pub fn overlaps(&self, other: &Self) -> bool {
        let (own, others) = (self.address().to_bits(), other.address().to_bits());
        own < others + other.bytes as u64 && others < own + self.bytes as u64
    }
}

impl Drop for ImportedMemory {
    fn drop(&mut self) {
        // A send fails only if the thread has ended, and it closed all memory then.
        let _ = self.sharing.orders.send(Order::Close(self.address));
    }
}

/// The state of a card's thread.
struct Copier {
    context: Arc<Context>,
    stream: Stream,
    pinned: Mapped<u8>,
    /// Open memory. Handles of the same memory may have the same address, so an address may occur more than once.
    open: Vec<Imported>,
}

impl Copier {
    fn open(card: u16) -> Result<Self, DeviceError> {
        let context = Context::retain(card, None)?;
        let (stream, pinned) = (Stream::new(&context)?, Mapped::new(&context, STEP_BYTES)?);
        Ok(Self { context, stream, pinned, open: Vec::new() })
    }

    /// Executes orders until all senders are dropped. A reply fails to be sent if its caller gave up; memory that was
    /// opened for it is closed again.
    fn serve(mut self, orders: &Receiver<Order>, outstanding: &AtomicUsize) {
        for order in orders {
            match order {
                Order::Open { handle, reply } => {
                    let opened = self.import(handle);
                    let address = opened.as_ref().ok().map(|(address, _)| *address);
                    if reply.send(opened).is_err()
                        && let Some(address) = address
                    {
                        self.close(address);
                    }
                }
                Order::Read { from, bytes, into, reply } => _ = reply.send(self.read(from, bytes, into)),
                Order::Write { data, to, reply } => _ = reply.send(self.write(&data, to)),
                Order::Close(address) => {
                    self.close(address);
                    continue;
                }
            }
            outstanding.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn import(&mut self, handle: [u8; IMPORT_HANDLE_BYTES]) -> Result<(Address, usize), DeviceError> {
        let imported = Imported::open(&self.context, handle)?;
        let found = (imported.address(), imported.bytes()?);
        self.open.push(imported);
        Ok(found)
    }

    fn close(&mut self, address: Address) {
        if let Some(at) = self.open.iter().position(|imported| imported.address() == address) {
            self.open.swap_remove(at);
        }
    }

    fn read(&mut self, from: Address, bytes: usize, mut into: Vec<u8>) -> Result<Vec<u8>, DeviceError> {
        for offset in (0..bytes).step_by(STEP_BYTES) {
            let step = STEP_BYTES.min(bytes - offset);
            self.stream.download(from.offset(offset), &mut self.pinned, step)?;
            into.extend_from_slice(self.pinned.bytes(step));
        }
        Ok(into)
    }

    fn write(&mut self, data: &[u8], to: Address) -> Result<(), DeviceError> {
        for (number, step) in data.chunks(STEP_BYTES).enumerate() {
            self.pinned.fill(step);
            self.stream.upload(&self.pinned, to.offset(number * STEP_BYTES), step.len())?;
        }
        Ok(())
    }
}
