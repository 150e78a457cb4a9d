/** The text of a message's content, which is a string or a list of parts. */

import type { Json, Message } from '../data/types'

export interface Part {
  kind: 'text' | 'image' | 'other'
  text: string
}

export function parts(content: Json): Part[] {
  if (content === null || content === '') return []
  if (typeof content === 'string') return [{ kind: 'text', text: content }]
  if (!Array.isArray(content)) return [{ kind: 'other', text: JSON.stringify(content, null, 2) }]
  return content.map(part)
}

export function plainText(content: Json): string {
  return parts(content)
    .map((item) => item.text)
    .join('\n')
}

/** All that a search looks through, on the server and in the page. */
export function searchedText({ reasoning, content, searched }: Message): string {
  return [reasoning ?? '', searched ?? plainText(content)].join('\n')
}

function part(item: Json): Part {
  if (typeof item === 'string') return { kind: 'text', text: item }
  if (item !== null && typeof item === 'object' && !Array.isArray(item)) {
    if (typeof item.text === 'string') return { kind: 'text', text: item.text }
    if (typeof item.type === 'string' && item.type.includes('image')) return { kind: 'image', text: item.type }
  }
  return { kind: 'other', text: JSON.stringify(item, null, 2) }
}

/** A call of a tool in one line: look_up({"word": "tree"}). */
export function callText(call: Json): string {
  const named = (call ?? {}) as { function?: { name?: string; arguments?: Json } }
  const given = named.function?.arguments
  return `${named.function?.name ?? '?'}(${typeof given === 'string' ? given : JSON.stringify(given ?? '')})`
}
