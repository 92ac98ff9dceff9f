//! Memory of a card that other processes allocated and share by a handle of the driver (CUDA IPC).
//!
//! A thread for each card opens and closes such memory, which may hold a thread for a while, and copies between it and
//! the host through pinned memory. Kernels use it where it lies.

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
use crate::device::DeviceError;

/// Pinned memory of a card's thread: what is copied at once.
const STEP_BYTES: usize = 1 << 20;

/// How long a card may take to copy or open something.
const PATIENCE: Duration = Duration::from_secs(10);

/// One card's memory of other processes.
pub struct Sharing {
    card: u16,
    orders: Sender<Order>,
    /// Orders with an answer that the thread has not carried out.
    outstanding: Arc<AtomicUsize>,
    /// The last that was waited for has not been carried out in time.
    is_late: AtomicBool,
}

/// What the thread of a card is told.
enum Order {
    Open { handle: [u8; IMPORT_HANDLE_BYTES], reply: Reply<(Address, usize)> },
    Read { from: Address, bytes: usize, into: Vec<u8>, reply: Reply<Vec<u8>> },
    Write { data: Bytes, to: Address, reply: Reply<()> },
    Close(Address),
}

type Reply<T> = Sender<Result<T, DeviceError>>;

impl Sharing {
    /// Starts the thread of a card.
    ///
    /// # Errors
    /// When the card cannot be used, or the thread not be started.
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

    /// Opens the memory of a handle, which another process has from its driver.
    ///
    /// # Errors
    /// When the driver does not take the handle, or the card is lost.
    pub fn open(self: &Arc<Self>, handle: [u8; IMPORT_HANDLE_BYTES]) -> Result<ImportedMemory, DeviceError> {
        let (address, bytes) = self.ask(|reply| Order::Open { handle, reply })?;
        Ok(ImportedMemory { sharing: Arc::clone(self), address, bytes })
    }

    /// Has the thread do something, and waits for it. A card that does not answer is not waited for again before it
    /// has.
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

/// Memory of another process. It is closed once nothing holds it any more.
#[derive(Debug)]
pub struct ImportedMemory {
    sharing: Arc<Sharing>,
    address: Address,
    bytes: usize,
}

impl ImportedMemory {
    /// How many bytes there are.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Appends bytes from an offset on to `into`, which has the room.
    ///
    /// # Errors
    /// When it ends before, or the card is lost.
    pub fn read(&self, offset: usize, bytes: usize, into: Vec<u8>) -> Result<Vec<u8>, DeviceError> {
        let from = self.at(offset, bytes)?;
        self.sharing.ask(|reply| Order::Read { from, bytes, into, reply })
    }

    /// Writes bytes from an offset on.
    ///
    /// # Errors
    /// When it ends before, or the card is lost.
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

/// A part of such memory, which lies within it. It keeps the memory open.
#[derive(Clone, Debug)]
pub struct ImportedSlice {
    memory: Arc<ImportedMemory>,
    offset: usize,
    bytes: usize,
}

impl ImportedSlice {
    /// Bytes of `memory` from an offset on; none where it ends before.
    pub fn new(memory: &Arc<ImportedMemory>, offset: usize, bytes: usize) -> Option<Self> {
        memory.at(offset, bytes).ok()?;
        Some(Self { memory: Arc::clone(memory), offset, bytes })
    }

    /// Where it begins.
    pub fn address(&self) -> Address {
        self.memory.address.offset(self.offset)
    }

    /// How many bytes it has.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its first bytes; none where it has not as many.
    #[must_use]
    pub fn first(&self, bytes: usize) -> Option<Self> {
        (bytes <= self.bytes).then(|| Self { bytes, ..self.clone() })
    }

    /// Whether it has bytes in common with another.
    pub fn overlaps(&self, other: &Self) -> bool {
        let (own, others) = (self.address().to_bits(), other.address().to_bits());
        own < others + other.bytes as u64 && others < own + self.bytes as u64
    }
}

impl Drop for ImportedMemory {
    fn drop(&mut self) {
        // A thread that has ended has closed everything.
        let _ = self.sharing.orders.send(Order::Close(self.address));
    }
}

/// What the thread has.
struct Copier {
    context: Arc<Context>,
    stream: Stream,
    pinned: Mapped<u8>,
    /// Memory that is open, in the order of opening: a handle that was opened twice may have one address.
    open: Vec<Imported>,
}

impl Copier {
    fn open(card: u16) -> Result<Self, DeviceError> {
        let context = Context::retain(card)?;
        let (stream, pinned) = (Stream::new(&context)?, Mapped::new(&context, STEP_BYTES)?);
        Ok(Self { context, stream, pinned, open: Vec::new() })
    }

    /// Does what it is told until no one is left to tell it. A caller that has not waited needs no answer.
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
