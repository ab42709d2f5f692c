//! On which memory nodes of the machine the pages of an index are, and on which ones new pages come to be.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use crate::error::{Error, Result};
use crate::reader::Index;
use crate::residency::{for_each_page, page_bytes, pages_of};

const NODES: &str = "/sys/devices/system/node";
/// Most pages whose node is asked for; of larger files every n-th one is.
const MAX_SAMPLES: usize = 1 << 16;
const MPOL_BIND: libc::c_int = 2;
const MPOL_INTERLEAVE: libc::c_int = 3;

/// Where threads run and their new pages come to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// As the system does by itself.
    Off,
    /// Pages go round all nodes.
    Interleave,
    /// Pages and threads on one node.
    Bind(usize),
}

impl Policy {
    /// The policy of this name: off, interleave or bind:N.
    pub fn parse(name: &str) -> Result<Self> {
        match (name, name.strip_prefix("bind:").map(str::parse)) {
            ("off", _) => Ok(Self::Off),
            ("interleave", _) => Ok(Self::Interleave),
            (_, Some(Ok(node))) => Ok(Self::Bind(node)),
            _ => {
                let message = format!("must be off, interleave or bind:N with the number of a node, got {name:?}");
                Err(Error::invalid("numa", message))
            }
        }
    }

    /// Apply to the calling thread and to the threads that it starts from now on. Pages that exist stay where they are.
    pub fn apply(self) -> Result<()> {
        match self {
            Self::Off => Ok(()),
            Self::Interleave => set_memory_policy(MPOL_INTERLEAVE, &memory_nodes()?),
            Self::Bind(node) => {
                let nodes = memory_nodes()?;
                if !nodes.contains(&node) {
                    let message = format!("there is no memory node {node}; this machine has {}", list(&nodes));
                    return Err(Error::invalid("numa", message));
                }
                let cpus = numbers(&format!("{NODES}/node{node}/cpulist"))?;
                if cpus.is_empty() {
                    let message = format!("node {node} has memory but no CPUs; use interleave or another node");
                    return Err(Error::invalid("numa", message));
                }
                set_memory_policy(MPOL_BIND, &[node])?;
                set_cpus(&cpus)
            }
        }
    }
}

/// Where the pages of an index are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pages {
    /// Bytes in memory, to the page.
    pub resident_bytes: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Pages whose node was asked for; all resident ones of a small file, every n-th one of a large file.
    pub sampled: u64,
    /// Sampled pages by node. Pages that were evicted meanwhile are in none.
    pub by_node: BTreeMap<u32, u64>,
}

impl Index {
    /// Where its pages are. Enters those that are asked for into the page table; reads nothing from disk.
    pub fn pages(&self) -> Result<Pages> {
        let fail = |source| Error::io("find the pages of", self.path(), source);
        let bytes = self.bytes.get();
        let mut pages = Pages {
            resident_bytes: self.resident_bytes()?,
            page_bytes: page_bytes() as u64,
            sampled: 0,
            by_node: BTreeMap::new(),
        };
        if pages.resident_bytes == 0 {
            return Ok(pages);
        }
        let (start, count) = pages_of(bytes);
        let resident = pages.resident_bytes.div_ceil(pages.page_bytes) as usize;
        let stride = resident.div_ceil(MAX_SAMPLES);
        let mut sample = Vec::with_capacity(resident / stride + 1);
        let mut seen = 0_usize;
        for_each_page(start, count, |page, present| {
            if present {
                if seen.is_multiple_of(stride) {
                    sample.push(page);
                }
                seen += 1;
            }
        })
        .map_err(fail)?;
        let mut addresses = Vec::with_capacity(sample.len());
        for page in sample {
            // A page has a node for us once it is in our page table. The first one may start before the bytes do.
            let at = (page * page_bytes()).saturating_sub(bytes.as_ptr().addr() - start);
            if let Some(byte) = bytes.get(at) {
                std::hint::black_box(*byte);
                addresses.push(bytes.as_ptr().wrapping_add(at).cast::<libc::c_void>().cast_mut());
            }
        }
        pages.sampled = addresses.len() as u64;
        for node in nodes_of(&addresses).map_err(fail)? {
            if let Ok(node) = u32::try_from(node) {
                *pages.by_node.entry(node).or_default() += 1;
            }
        }
        Ok(pages)
    }
}

/// The node of each page, or a negative error number for a page that is not in memory.
fn nodes_of(addresses: &[*mut libc::c_void]) -> io::Result<Vec<libc::c_int>> {
    let mut status = vec![0; addresses.len()];
    let nowhere = std::ptr::null::<libc::c_int>();
    // SAFETY: both arrays hold `addresses.len()` entries; without nodes to move to, the call only fills `status`.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            addresses.len(),
            addresses.as_ptr(),
            nowhere,
            status.as_mut_ptr(),
            0,
        )
    };
    match answer {
        0 => Ok(status),
        _ => {
            let error = io::Error::last_os_error();
            // A kernel without NUMA has one node, and does not know the call.
            if error.raw_os_error() == Some(libc::ENOSYS) {
                Ok(status)
            } else {
                Err(error)
            }
        }
    }
}

fn memory_nodes() -> Result<Vec<usize>> {
    numbers(&format!("{NODES}/has_memory"))
}

fn set_memory_policy(mode: libc::c_int, nodes: &[usize]) -> Result<()> {
    let mask = mask(nodes);
    // The call takes one bit less than it is told.
    let bits = mask.len() * u64::BITS as usize + 1;
    // SAFETY: the mask has that many bits, and the call only reads it.
    let answer = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, mask.as_ptr(), bits) };
    outcome(
        answer,
        "cannot set the memory policy (a container needs CAP_SYS_NICE for it; or use --numa off)",
    )
}

fn set_cpus(cpus: &[usize]) -> Result<()> {
    let mask = mask(cpus);
    // SAFETY: the length is that of the mask in bytes, and the call only reads it; 0 is the calling thread.
    let answer = unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, size_of_val(&mask[..]), mask.as_ptr()) };
    outcome(
        answer,
        "cannot bind threads to the CPUs of the node (are they allowed here? or use --numa off)",
    )
}

fn outcome(answer: libc::c_long, context: &str) -> Result<()> {
    match answer {
        0 => Ok(()),
        _ => Err(Error::Io {
            context: context.to_owned(),
            source: io::Error::last_os_error(),
        }),
    }
}

fn mask(bits: &[usize]) -> Vec<u64> {
    let words = bits.iter().max().map_or(1, |bit| bit / 64 + 1);
    let mut mask = vec![0; words];
    for bit in bits {
        mask[bit / 64] |= 1 << (bit % 64);
    }
    mask
}

/// The numbers of a file such as `0-3,8`, as the kernel lists nodes and CPUs.
fn numbers(path: &str) -> Result<Vec<usize>> {
    let text = fs::read_to_string(path).map_err(|source| Error::Io {
        context: format!("cannot read {path}, which lists the memory nodes of this machine; use --numa off"),
        source,
    })?;
    Ok(parse_list(&text))
}

fn parse_list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

fn list(nodes: &[usize]) -> String {
    nodes.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_policies() {
        assert_eq!(Policy::parse("off").unwrap(), Policy::Off);
        assert_eq!(Policy::parse("interleave").unwrap(), Policy::Interleave);
        assert_eq!(Policy::parse("bind:12").unwrap(), Policy::Bind(12));
        for name in ["", "bind", "bind:", "bind:-1", "bind:x", "on"] {
            assert!(Policy::parse(name).unwrap_err().to_string().contains(&format!("{name:?}")));
        }
    }

    #[test]
    fn lists_and_masks() {
        assert_eq!(parse_list("0-2,5,63-65\n"), [0, 1, 2, 5, 63, 64, 65]);
        assert_eq!(parse_list("\n"), [0_usize; 0]);
        assert_eq!(mask(&[0, 5, 63, 64]), [1 | 1 << 5 | 1 << 63, 1]);
        assert_eq!(mask(&[]), [0]);
    }

    #[test]
    fn unknown_nodes_are_refused() {
        if memory_nodes().is_ok() {
            let message = Policy::Bind(4000).apply().unwrap_err().to_string();
            assert!(message.contains("no memory node 4000"), "{message}");
        }
    }
}
