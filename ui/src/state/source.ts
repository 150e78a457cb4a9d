/** The page's one source of data, and where its components find it. */

import { createContext } from 'preact'
import { useContext } from 'preact/hooks'

import type { Source } from '../data/source'

export const SourceContext = createContext<Source | null>(null)

export function useSource(): Source {
  const source = useContext(SourceContext)
  if (source === null) throw new Error('no source of data above this component')
  return source
}
