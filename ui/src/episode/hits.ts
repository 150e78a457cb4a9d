/** What was searched for, in an episode that was found. */

import type { RefObject } from 'preact'
import { useEffect } from 'preact/hooks'

import type { Episode } from '../data/types'
import { searchedText } from '../text/content'
import { messagesOf } from './ChatFace'

const NAME = 'hit'

/** The messages that hold a text in any case, as their nodes; none where nothing is searched for. */
export function hitsOf(episode: Episode, text: string): Set<number> {
  const sought = text.toLowerCase()
  const found = text === '' ? [] : episode.messages.filter((message) => searchedText(message).toLowerCase().includes(sought))
  return new Set(found.map(({ node }) => node))
}

/** A timeline's first hit; -1 where it has none. */
export function firstHit(episode: Episode, timeline: number, hits: Set<number>): number {
  return messagesOf(episode, timeline).find(({ node }) => hits.has(node))?.node ?? -1
}

/** The first timeline that has a hit; 0 where none has. */
export function hitTimeline(episode: Episode, hits: Set<number>): number {
  return Math.max(0, episode.timelines.findIndex(({ path }) => path.some((node) => hits.has(node))))
}

/** Marks a text wherever it stands in an element, also in what comes into it later. */
export function useMarkedHits(area: RefObject<HTMLElement | null>, text: string): void {
  useEffect(() => {
    const element = area.current
    if (!element || text === '' || !('highlights' in CSS)) return
    const mark = (): void => void CSS.highlights.set(NAME, new Highlight(...ranges(element, text.toLowerCase())))
    mark()
    const changes = new MutationObserver(mark)
    changes.observe(element, { childList: true, subtree: true, characterData: true })
    return () => {
      changes.disconnect()
      CSS.highlights.delete(NAME)
    }
  }, [text])
}

function ranges(element: HTMLElement, sought: string): Range[] {
  const found: Range[] = []
  const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT)
  for (let node = texts.nextNode(); node; node = texts.nextNode()) {
    const text = node.nodeValue!.toLowerCase()
    for (let at = text.indexOf(sought); at >= 0; at = text.indexOf(sought, at + sought.length)) {
      const range = document.createRange()
      const length = node.nodeValue!.length // which a letter's lower case may have another of
      range.setStart(node, Math.min(at, length))
      range.setEnd(node, Math.min(at + sought.length, length))
      found.push(range)
    }
  }
  return found
}
